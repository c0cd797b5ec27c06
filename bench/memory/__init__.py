"""How much memory a large dataset takes, with several workers and ranks."""
