"""Types of the extension built from cython_ext/figures/onlooker.pyx, where each is explained."""

from typing import NamedTuple, final

class OtherVersion(ValueError): ...

class Totals(NamedTuple):
    label: str
    now: int
    asked_at: int
    waited_ns: int
    user_waited_ns: int
    user_stepped_ns: int
    epoch: int
    taken: int
    samples: int
    bytes: int
    lent: int
    copied: int
    deaths: int

class LaneNow(NamedTuple):
    worker: int
    pid: int
    doing: str
    since: int
    published: int
    fetched_ns: int
    collated_ns: int

class EntryNow(NamedTuple):
    sequence: int
    state: str
    owner: int
    epoch: int
    batch: int
    payload: int

@final
class Onlooker:
    workers: int
    entries: int
    payloads: int
    batches: int
    trainer: int
    started_at: int
    def __init__(self, fd: int) -> None: ...
    @property
    def closed(self) -> bool: ...
    def totals(self) -> Totals: ...
    def lanes(self) -> list[LaneNow]: ...
    def in_flight(self) -> list[EntryNow]: ...
    def slot_bytes(self) -> list[int]: ...
