"""Whether a batch costs more as one thing grows."""
