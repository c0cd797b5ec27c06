"""Types of the extension built from cython_ext/next_batch.pyx, where each is explained."""

from collections.abc import Iterator
from typing import Any, Final, final

from shmloader._trainer import TrainerSide

END: Final[object]
NOTHING: Final[object]

@final
class Steps:
    most: int
    def __init__(self, ring: TrainerSide, most: int) -> None: ...
    def next(self, iterator: Any) -> Any: ...
    def begin(self, iterator: Any, indices: Iterator[Any]) -> None: ...
    def drain(self, iterator: Any) -> None: ...
