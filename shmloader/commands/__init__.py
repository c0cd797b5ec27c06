"""The commands of a terminal: `shmloader doctor`, `shmloader tune`, `shmloader top`."""
