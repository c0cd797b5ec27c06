"""The way to a device: streams, page-locked memory, and copies that a thread makes in advance."""
