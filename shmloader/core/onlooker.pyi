"""Types of the extension built from cython_ext/figures/onlooker.pyx, where each is explained."""

from typing import NamedTuple, final

class OtherVersion(ValueError): ...

class Totals(NamedTuple):
    label: str
    trainer: int
    started_at: int
    now: int
    asked_at: int
    waited_ns: int
    stepped_ns: int
    user_waited_ns: int
    user_stepped_ns: int
    epoch: int
    opened: int
    taken: int
    samples: int
    bytes: int
    asked: int
    empty: int
    ready: int
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
    idle_ns: int
    behind_ns: int
    cpu_ns: int
    delayed_ns: int
    probed_ns: int

class EntryNow(NamedTuple):
    sequence: int
    entry: int
    state: str
    owner: int
    epoch: int
    batch: int
    row: int
    rows: int
    payload: int
    claimed_at: int
    fetched_at: int
    published_at: int

@final
class Onlooker:
    workers: int
    entries: int
    payloads: int
    batches: int
    area_at: int
    area_stride: int
    slot_at: int
    slot_stride: int
    trainer: int
    started_at: int
    def __init__(self, fd: int) -> None: ...
    @property
    def closed(self) -> bool: ...
    def totals(self) -> Totals: ...
    def lanes(self) -> list[LaneNow]: ...
    def in_flight(self) -> list[EntryNow]: ...
    def slot_bytes(self) -> list[int]: ...
