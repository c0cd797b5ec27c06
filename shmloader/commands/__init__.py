"""The commands of a terminal: `shmloader doctor`, `tune`, `top`, `index` and `serve`."""
