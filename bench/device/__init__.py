"""How quickly batches come to a GPU."""
