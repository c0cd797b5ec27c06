"""Side-by-side measurements of torch's DataLoader and shmloader's: `python -m bench --help`."""
