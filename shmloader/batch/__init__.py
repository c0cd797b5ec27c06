"""The structure of a batch."""
