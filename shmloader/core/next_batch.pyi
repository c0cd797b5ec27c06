"""Types of the extension built from cython_ext/ring/next_batch.pyx, where each is explained."""

from typing import Any, Final, final

from shmloader.core.trainer import TrainerSide
from shmloader.trainer.step import ConductorSide, ReaderSide

END: Final[object]

@final
class Steps:
    returning: bool
    beginning: int
    def __init__(
        self, ring: TrainerSide, conductor: ConductorSide, reader: ReaderSide, wrapper: type | None = ...
    ) -> None: ...
    def next(self) -> Any: ...
    def begin(self) -> None: ...
    def drain(self) -> None: ...
