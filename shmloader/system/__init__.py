"""This process and this machine: signals, a parent's death, the arguments of spawned processes, limits."""
