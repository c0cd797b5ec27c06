"""The way to a device: streams, page-locked memory, copies that are made ahead."""
