"""What the documentation is built and checked with."""
