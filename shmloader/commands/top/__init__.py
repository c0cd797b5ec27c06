"""`shmloader top`: shows the loaders of running processes from outside, at no cost to them."""
