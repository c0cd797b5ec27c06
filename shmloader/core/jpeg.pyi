"""Types of the extension built from cython_ext/jpeg/jpeg.pyx, where each is explained."""

import os
from typing import Any, BinaryIO

def paths() -> list[str]: ...

class Decoder:
    path: str
    status: tuple[int, int]
    marks: bytes | None
    stream: BinaryIO | None
    def __init__(self, path: str | None = None) -> None: ...
    def open(
        self, data: Any, bytes: int = -1, status: tuple[int, int] | None = None
    ) -> tuple[int, int, int] | None: ...
    def read(self, path: str | os.PathLike[str]) -> tuple[int, int, int] | None: ...
    def skim(self, crop: tuple[int, int, int, int]) -> bool: ...
    def decode(
        self,
        crop: tuple[int, int, int, int],
        out: Any,
        exact: bool = True,
        down_first: bool = True,
        smooth: bool = True,
        marks: bytes | None = None,
        marking: bool = False,
        window: tuple[int, int, int, int] | None = None,
        filter: int = 2,
        keep: bool = False,
        mirrored: bool = False,
    ) -> bool: ...
    def planes_bytes(self) -> int: ...
    def planes(self) -> bytes | None: ...
    def open_planes(self, data: Any, at: int = 0, bytes: int = -1) -> tuple[int, int, int] | None: ...
    def close(self) -> None: ...
