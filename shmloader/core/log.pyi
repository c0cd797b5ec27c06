"""Types of the extension built from cython_ext/figures/log.pyx, where each is explained."""

from typing import NamedTuple, final

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
