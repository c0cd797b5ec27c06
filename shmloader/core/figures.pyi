"""Types of the extension built from cython_ext/figures/figures.pyx, where each is explained."""

from typing import Final, NamedTuple, final

SIZE: int

class Taken(NamedTuple):
    batch: int
    sequence: int
    opened_at: int
    claimed_at: int
    fetched_at: int
    published_at: int
    asked_at: int
    taken_at: int
    handed_out_at: int
    dropped_at: int
    epoch: int
    worker: int
    chunk: int
    samples: int

@final
class Log:
    size: int
    count: int
    def __init__(self, size: int = ...) -> None: ...
    def keep(self, size: int) -> None: ...
    def since(self, number: int = ...) -> list[Taken]: ...

WAIT: Final[int]
STEP: Final[int]
FIRST: Final[int]
SOURCE_WAIT: Final[int]
CLAIM: Final[int]
FETCH: Final[int]
COLLATE: Final[int]
ORDER: Final[int]
READY: Final[int]
LENT: Final[int]
TO_DEVICE: Final[int]

BATCHES: Final[int]
SAMPLES: Final[int]
BYTES: Final[int]
EMPTY: Final[int]
READY_BATCHES: Final[int]
ON_OPEN: Final[int]
ON_CLAIM: Final[int]
ON_FETCH: Final[int]
ON_COLLATE: Final[int]
ON_WAKE: Final[int]
ON_HAND_OUT: Final[int]
COPIED_SPARE: Final[int]
COPIED_KEPT: Final[int]
COPIED_UNLOCKED: Final[int]
GROWN: Final[int]
DEATHS: Final[int]
STARTING: Final[int]
MOVED: Final[int]

@final
class Figures:
    workers: int
    def __init__(self, workers: int = ...) -> None: ...
    def have(self, workers: int) -> int: ...
    def copy(self) -> Figures: ...
    def less(self, earlier: Figures) -> None: ...
    def count(self, kind: int) -> int: ...
    def seconds(self, kind: int) -> float: ...
    def percentile(self, kind: int, share: float) -> float: ...
    def amount(self, kind: int) -> int: ...
    def held(self) -> list[int]: ...
    def of_worker(self, worker: int) -> dict[str, int]: ...
    def add(self, kind: int, more: int = ...) -> None: ...
    def add_time(self, kind: int, nanoseconds: int) -> None: ...
