"""How long workers take to start, by each way of starting them."""
