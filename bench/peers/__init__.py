"""Whether any other loader hands batches over as quickly."""
