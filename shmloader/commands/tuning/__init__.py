"""`shmloader tune`: measures how many workers, and which options, a dataset needs on this machine."""
