"""What handing a batch over costs, and how many a second there are: torch, ours, and the ceiling."""
