"""A process that has imported torch and unpickled the dataset, and forks the workers: NOTE [ Template ] in server.py."""
