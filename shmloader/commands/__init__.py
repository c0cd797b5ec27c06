"""What is run from a terminal: `shmloader doctor`, `shmloader tune`, `shmloader top`."""
