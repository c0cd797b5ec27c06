"""This process and this machine: signals, a parent's death, what a spawned process is given, limits."""
