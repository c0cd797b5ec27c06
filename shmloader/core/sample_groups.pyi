"""Types of the extension built from cython_ext/storage/sample_groups.pyx, where each is explained."""

from typing import Any

def group(
    names: bytes, ends: Any, places: Any, sizes: Any
) -> tuple[bytes, bytearray, bytearray, bytearray, bytearray, bytearray, bytearray, list[bytes]]: ...
