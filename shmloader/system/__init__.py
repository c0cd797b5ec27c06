"""This process and this machine: signals, a parent's death, arguments of spawned processes, limits."""
