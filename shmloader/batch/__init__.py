"""What a batch is made of."""
