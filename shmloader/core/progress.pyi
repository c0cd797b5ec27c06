"""Types of the extension built from cython_ext/ring/progress.pyx, where each is explained."""

from typing import final

@final
class Progress:
    batches: int
    samples: int
    beyond: dict[int, int]
    of_workers: list[int]
    ended: list[bool]
    states: list[bytes | None] | None
    latest: int
    returned: int
    def __init__(self, numbered: bool = ..., workers: int = ...) -> None: ...
    def add(self, samples: int) -> None: ...
    def copy(self) -> Progress: ...
