"""Types of the extension built from cython_ext/frozen/frozen_rows.pyx, where each is explained."""

from typing import Any

class Pages:
    memory: Any
    place: int
    size: int
    def __init__(self, memory: Any, place: int, size: int) -> None: ...
