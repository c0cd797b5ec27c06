"""Types of the extension built from cython_ext/storage/tar_members.pyx, where each is explained."""

from typing import Any

class TarMembers:
    count: int
    at: int
    needed: int
    ended: bool
    def scan(self, file: int) -> bool: ...
    def feed(self, data: Any, place: int) -> bool: ...
    def end_of_file(self, rest: int) -> None: ...
    def found(self) -> tuple[bytes, bytes, bytes, bytes]: ...

def group(
    names: bytes, all_ends: bytes, all_places: bytes, all_sizes: bytes
) -> tuple[bytes, bytearray, bytearray, bytearray, bytearray, bytearray, bytearray, list[bytes]]: ...
