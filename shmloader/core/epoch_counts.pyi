"""Types of the extension built from cython_ext/ring/epoch_counts.pyx, where each is explained."""

from collections.abc import Callable
from typing import Any

from shmloader.core.indices import Indices
from shmloader.core.progress import Progress

class Reading:
    taken: int
    samples: int
    delivered: Progress
    ended: bool
    def __init__(self, delivered: Progress) -> None: ...

class EpochCounts:
    source: Indices | None
    opened: int
    samples: int
    last_worker: int
    first: int
    reading: Reading
    def __init__(self, numbered: bool = ..., workers: int = ...) -> None: ...
    def dataset_has(self, number: int | None) -> None: ...
    def dataset_epoch_of(self, draw: int) -> int | None: ...
    before: int
    def index(self, count: Callable[[Any], int]) -> Any: ...
    def hand_out(self, samples: int) -> None: ...
