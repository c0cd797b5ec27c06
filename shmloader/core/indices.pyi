"""Types of the extension built from cython_ext/ring/indices.pyx, where each is explained."""

from collections.abc import Iterator
from typing import Any, Final

NOTHING: Final[object]

class Indices:
    indices: Iterator[Any]
    def __init__(self, indices: Iterator[Any]) -> None: ...
    @property
    def is_exhausted(self) -> bool: ...
    @property
    def is_lost(self) -> bool: ...
    def replay(self, count: int) -> Any: ...
