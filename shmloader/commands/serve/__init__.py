"""`shmloader serve`: hosts a loader for other processes."""
