"""A process that imports torch, unpickles the dataset and forks the workers: NOTE [ Template ] in server.py."""
