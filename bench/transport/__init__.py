"""The cost of handing a batch over, and batches a second: torch, ours, and the ceiling."""
