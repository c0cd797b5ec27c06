"""How long a worker's death costs."""
