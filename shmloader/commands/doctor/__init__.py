"""`shmloader doctor`: checks whether this machine or environment limits a loader."""
