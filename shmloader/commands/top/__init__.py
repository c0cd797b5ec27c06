"""`shmloader top`: the loaders of running processes, seen from outside, without a cost to those who run them."""
