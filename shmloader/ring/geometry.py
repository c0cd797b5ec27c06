"""The layout of the ring's memory: how many workers it allows, how many slots, and where entries, areas and slots lie.

Whether there is memory for them is in growth.py.  Where each tensor of a batch lies in its slot is written by note() in
batch_writer.pyx; allocate() in worker.pyx aligns it.  The head of batch_writer.pyx says what else a new field needs:
both readers of it, and the versions of the ring and of far workers.  The words of an entry and of a slot are in
atomics.h.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from shmloader.core.ring import ANY, ENTRY_BYTES, HEADER_BYTES, PAYLOAD_BYTES, WORKER_BYTES

PAGE = mmap.PAGESIZE
MiB = 1 << 20

AREA_RESERVED = 64 * MiB  # address space of one entry's area: 8 million indices
AREA_AT_LEAST = 256 * 1024  # where addresses are limited, and if a quarter of those reserved is enough for that
MEMORY = 16 * 1024  # the states of three generators are 12 KiB
FIRST_COMMIT = 16 * 1024  # pages of a payload before its first batch: enough for an exception and its traceback
SPARE_COMMIT = 64 * 1024  # committed beyond the need, so that a batch's description rarely needs more
MOST_WORKERS = ANY  # the next index means "any worker"


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@dataclass(frozen=True)
class Geometry:
    """The offsets in the segment, in bytes from its start: control words, memories, areas, cells, payload slots, and
    the tails of slots, which are not mapped at first: NOTE [ Rooms ] in ring.pxd."""

    workers: int
    entries: int
    batches: int  # how many may be under way: as many as entries, or fewer if they are cut into chunks
    payloads: int
    memory_stride: int
    area_stride: int
    slot_stride: int
    cells: int = 0  # for the states of streams: cells_for()
    cell_stride: int = 0
    tail_stride: int = 0  # 0: no slot outgrows its room

    @property
    def memory_at(self) -> int:
        words = HEADER_BYTES + self.workers * WORKER_BYTES + self.entries * ENTRY_BYTES + self.payloads * PAYLOAD_BYTES
        return up(words, PAGE)

    @property
    def area_at(self) -> int:
        return self.memory_at + 2 * self.workers * self.memory_stride

    @property
    def cell_at(self) -> int:
        return self.area_at + self.entries * self.area_stride

    @property
    def slot_at(self) -> int:
        return self.cell_at + self.cells * self.cell_stride

    @property
    def tail_at(self) -> int:
        return self.slot_at + self.payloads * self.slot_stride

    @property
    def mapped(self) -> int:
        """How many bytes each process maps at first."""
        return self.tail_at

    @property
    def size(self) -> int:
        return self.tail_at + self.payloads * self.tail_stride

    @property
    def slot_most(self) -> int:
        """How many bytes a slot may have."""
        return self.slot_stride + self.tail_stride

    @property
    def area_commit(self) -> int:
        """Bytes of each entry's area that have pages from the start."""
        return PAGE

    def area_offset(self, entry: int) -> int:
        return self.area_at + entry * self.area_stride


def cells_for(entries: int, workers: int) -> int:
    """How many cells a ring of streams has, so that every opened sequence finds one: NOTE [ Cells ]."""
    return entries + workers + 1


def reserve(
    workers: int, entries: int, batches: int, spare: int, remember: bool, streams: bool, reserved: int, tail: int = 0
) -> Geometry:
    """Lay a ring out over about `reserved` bytes of addresses, with tails of `tail` bytes.

    It has one payload slot for each batch under way, `spare` more to lend, and one more for each worker, which replaces
    a slot that the worker keeps.

    Raises:
        ValueError: There are more workers than the ring has numbers for.
    """
    if workers > MOST_WORKERS:
        raise ValueError(f"num_workers={workers} is too many. A ring has at most {MOST_WORKERS} workers. Use fewer.")
    payloads = batches + spare + workers
    least = min(AREA_AT_LEAST, reserved // 4 // entries)
    task = min(AREA_RESERVED, up(max(reserved // 16 // entries, least), PAGE))
    slot = max(up(FIRST_COMMIT + SPARE_COMMIT, PAGE), reserved * 15 // 16 // payloads // PAGE * PAGE)
    cells = cells_for(entries, workers) if streams else 0
    memory = MEMORY if remember else 0
    return Geometry(workers, entries, batches, payloads, memory, task, slot, cells, task if streams else 0, tail)
