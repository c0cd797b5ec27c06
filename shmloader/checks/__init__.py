"""Whether a loader can ride the ring and have its options, and the warnings and errors if it cannot."""
