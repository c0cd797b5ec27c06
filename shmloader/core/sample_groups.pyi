"""Types of the extension built from cython_ext/storage/sample_groups.pyx, where each is explained."""

def group(
    names: bytes, all_ends: bytes, all_places: bytes, all_sizes: bytes
) -> tuple[bytes, bytearray, bytearray, bytearray, bytearray, bytearray, bytearray, list[bytes]]: ...
