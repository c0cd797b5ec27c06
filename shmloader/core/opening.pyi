"""Types of the extension built from cython_ext/ring/opening.pyx, where each is explained."""

from collections.abc import Callable
from typing import Any

from shmloader.core.epoch_counts import EpochCounts
from shmloader.core.free_slots import Slots
from shmloader.core.ring import Memory, Ring
from shmloader.core.sequences import Sequences
from shmloader.core.turns import Meter, Turns

class OpeningSide(Ring):
    sequences: Sequences
    slots: Slots
    turns: Turns
    current: EpochCounts
    under_way: int
    most: int
    epoch: int
    stopped: bool
    window: int
    batched: bool
    def __init__(
        self,
        segment: Memory,
        spin: bool,
        spare: int,
        in_order: bool,
        dumps: Callable[[Any], bytes] = ...,
        meter: Meter | None = ...,
    ) -> None: ...
    def begin_epoch(
        self,
        epoch: EpochCounts | None = ...,
        batched: bool = ...,
        dataset_epoch: int | None = ...,
        seed: int = ...,
    ) -> None: ...
    def has_room(self, chunks: int = ...) -> bool: ...
    def open(self, worker: int, task: Any, seed: int = ...) -> None: ...
    def open_chunks(self, workers: list[int], tasks: list[list[Any]], seed: int = ...) -> None: ...
    def has_room_for(self, batches: int, chunks: int) -> bool: ...
    def open_window(
        self, tasks: list[tuple[int, int, list[Any], list[int] | None]], samples: list[int], seeds: list[int]
    ) -> None: ...
    def dismiss(self, worker: int) -> None: ...
    def stop(self) -> None: ...
