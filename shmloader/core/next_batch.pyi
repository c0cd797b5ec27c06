"""Types of the extension built from cython_ext/ring/next_batch.pyx, where each is explained."""

from typing import Any, Final, final

from shmloader.core.indices import Indices
from shmloader.core.trainer import TrainerSide

END: Final[object]

@final
class Steps:
    most: int
    spoilt: bool
    def __init__(self, ring: TrainerSide, most: int, wrapper: type | None = ...) -> None: ...
    def next(self, iterator: Any) -> Any: ...
    def begin(self, iterator: Any, source: Indices, turns_over: bool = ...) -> None: ...
    def turn_over(self, iterator: Any, source: Indices, turns_over: bool) -> None: ...
    def drain(self, iterator: Any, next_too: bool = ...) -> None: ...
