"""`shmloader doctor`: what this machine and environment mean for a loader."""
