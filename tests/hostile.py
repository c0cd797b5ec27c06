"""A ring with both of its sides in one process, and words of it overwritten, as a worker's stray pointer would.

Run as a script, it is the body of test_hostile's fuzz: a crash must end this process and not pytest.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy
import psutil
import torch

from shmloader.batch import objects
from shmloader.batch.chunk_walk import walk_chunk
from shmloader.core.batch_writer import Writer
from shmloader.core.ring import ENTRY_BYTES, FILLED, HEADER_BYTES, PAYLOAD_BYTES, WORKER_BYTES
from shmloader.core.trainer import TrainerSide
from shmloader.core.worker import WorkerSide
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.ring.segment import Segment
from shmloader.trainer.delivery import Delivery

# where the words of atomics.h lie, and their sizes
ENTRY = {
    "word": (0, 8),
    "task_size": (16, 4),
    "task_kind": (20, 4),
    "payload": (24, 4),
    "row": (32, 4),
    "rows": (36, 4),
    "seed": (40, 8),
    "epoch": (48, 4),
    "cell": (52, 4),
    "dataset_epoch": (56, 8),
}
ANSWER = {
    "used": (80, 8),
    "meta_at": (88, 4),
    "meta_size": (92, 4),
    "plan_at": (96, 4),
    "plan_size": (100, 4),
    "objects_at": (104, 8),
    "objects_size": (112, 8),
    "outcome": (120, 4),
    "state_size": (124, 4),
}
PAYLOAD = {"committed": (0, 8), "overflowed": (8, 4)}


class Tagged(torch.Tensor):
    """A tensor of a class of its own."""


def poke(segment: Segment, at: int, size: int, value: int) -> None:
    os.pwrite(segment.fd, (value % (1 << 8 * size)).to_bytes(size, "little"), at)


def peek(segment: Segment, at: int, size: int) -> int:
    return int.from_bytes(os.pread(segment.fd, size, at), "little")


def entry_at(segment: Segment, entry: int, name: str) -> tuple[int, int]:
    at, size = {**ENTRY, **ANSWER}[name]
    return HEADER_BYTES + segment.geometry.workers * WORKER_BYTES + entry * ENTRY_BYTES + at, size


def payload_at(segment: Segment, payload: int, name: str) -> tuple[int, int]:
    at, size = PAYLOAD[name]
    return entry_at(segment, segment.geometry.entries, "word")[0] + payload * PAYLOAD_BYTES + at, size


class BothSides:
    """One worker and its trainer; the payload and the entry that were filled last stay in reach of poke()."""

    def __init__(self, in_order: bool = True, memory: Any = "auto", ends: bool = False, remember: bool = False) -> None:
        self.segment = Segment(1, 2, 2, 2, memory, None, remember)
        self.sides = self.segment, False
        self.trainer = TrainerSide(*self.sides, 2, in_order)
        self.segment.format(self.trainer)
        self.worker = WorkerSide(*self.sides, 0, 0)
        self.writer = Writer(self.worker, objects, walk_chunk)
        self.delivery = Delivery(self.trainer, worker_set=None, spare=2, timeout=0, ends=ends, dismisses=False)
        self.payload, self.filled, self.slot = -1, -1, (0, 0)
        self.described = self.pickled = (0, 0, 0, 0)  # see look_up()

    def claim(self, task: Any = 0) -> Any:
        self.trainer.open(0, task)
        return self.claim_again()

    def claim_again(self) -> Any:
        task = self.worker.claim()
        self.payload = self.worker.current
        self.filled = self.worker.sequence % self.segment.geometry.entries
        start = self.worker.address(0)
        self.slot = start, start + self.segment.geometry.slot_stride
        return task

    def die(self) -> None:
        """Have another worker take the place of this one, wherever it is; it claims what this one had claimed."""
        self.trainer.revoke(0)
        self.worker = WorkerSide(*self.sides, 0, self.trainer.sequences.next_take)

    def fill(self, batch: Any) -> None:
        self.claim()
        self.writer.write(batch)
        self.worker.publish(FILLED)

    def fill_chunks(self, chunks: list[Any], rows: int) -> None:
        """Publish a batch that is cut into two chunks of this many rows each."""
        tasks = [list(range(k * rows, (k + 1) * rows)) for k in range(len(chunks))]
        self.trainer.open_chunks([0] * len(chunks), tasks)
        for chunk in chunks:
            self.claim_again()
            self.writer.begin(rows)
            self.writer.write(chunk)
            self.worker.publish(FILLED)

    def words(self, words: list[int], plan: bytes, bytes_of_leaves: int = 64) -> None:
        """Publish a batch whose description is this, behind so many bytes of leaves."""
        self.claim()
        self.worker.allocate(bytes_of_leaves)
        self.worker.describe([0, *words], plan)
        self.worker.publish(FILLED)

    def entry(self, name: str, value: int, entry: int = 0) -> None:
        poke(self.segment, *entry_at(self.segment, entry, name), value)

    def header(self, name: str, value: int) -> None:
        poke(self.segment, *self.header_at(name), value)

    def header_of(self, name: str) -> int:
        return peek(self.segment, *self.header_at(name))

    def header_at(self, name: str) -> tuple[int, int]:
        """Where a word of the payload, or of the worker's report on the batch, lies."""
        if name in PAYLOAD:
            return payload_at(self.segment, self.payload, name)
        return entry_at(self.segment, self.filled, name)

    def slot_at(self, at: int) -> int:
        return self.worker.slot_at + self.payload * self.worker.slot_stride + at

    def area_at(self, at: int) -> int:
        return self.segment.geometry.area_offset(self.filled) + at

    def take(self) -> Any:
        """The batch, or the exception that the trainer's next() would raise."""
        assert self.trainer.wait(0)
        batch = self.delivery.read()
        self.trainer.took()
        if type(batch) is ExceptionWrapper:
            batch.reraise()
        return batch

    def __enter__(self) -> BothSides:
        return self

    def __exit__(self, *_: object) -> None:
        self.trainer.close()
        self.segment.close()


# --------------------------------------------------------------------------------------------------------------- fuzz

VIEWED = torch.arange(32.0)
OWN = torch.arange(6).as_subclass(Tagged)
OWN.mask = torch.ones(3)
BATCHES = [
    torch.arange(12.0).reshape(3, 4),
    torch.arange(48, dtype=torch.int16).reshape(1, 2, 4, 6).to(memory_format=torch.channels_last),
    {"x": torch.ones(5, dtype=torch.bfloat16), "n": numpy.arange(6, dtype=numpy.uint16).reshape(2, 3).T, "s": "text"},
    [torch.zeros(2, 0, 3), (torch.ones(()), numpy.float64(3)), [1, "two", None]],
    [torch.ones(2, 3, requires_grad=True), b"bytes" * 40, numpy.array(["text", "s"])],
    [VIEWED, VIEWED[2:9], VIEWED.view(4, 8)[:, 3:5], VIEWED[:1].expand(7), VIEWED.unfold(0, 8, 2), numpy.arange(3)],
    [VIEWED, {"x": VIEWED}, (OWN, numpy.arange(3), OWN), {"m": {"k": [1, [2]]}}],
    {"p": torch.nn.Parameter(VIEWED[1:2].expand(5)), "q": torch.nn.Parameter(VIEWED.view(4, 8).t()), "v": VIEWED[3:9]},
]
CHUNKS = [  # of two rows each
    [torch.arange(8.0).reshape(2, 4), torch.arange(8.0, 16.0).reshape(2, 4)],
    [{"x": torch.ones(2, 3), "s": ["a", "b"]}, {"x": torch.zeros(2, 3), "s": ["c", "d"]}],
    [[numpy.arange(2), ("x", "y")], ExceptionWrapper((ValueError, ValueError("it failed"), None), "here")],
]
EDGES = [0, 1, 2, 3, 7, 8, 64, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 61, 1 << 62, (1 << 63) - 1]
PLACES = ("header", "header", "meta", "meta", "plan", "table", "pickled", "entry")

values = st.one_of(
    st.sampled_from([sign * edge for edge in EDGES for sign in (1, -1)]),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.tuples(st.sampled_from(["used", "stride"]), st.integers(-130, 130)),
)
edits = st.lists(
    st.tuples(
        st.sampled_from(PLACES), st.integers(0, 400), st.one_of(values, st.tuples(st.just("flip"), st.integers(0, 7)))
    ),
    min_size=1,
    max_size=3,
)


def edit(ring: BothSides, place: str, index: int, value: Any) -> None:
    at, size = extent(ring, place)
    if size <= 0:
        return
    if isinstance(value, tuple) and value[0] == "flip":
        at += index % size
        poke(ring.segment, at, 1, peek(ring.segment, at, 1) ^ 1 << value[1])
        return
    if isinstance(value, tuple):
        value = value[1] + (ring.header_of("used") if value[0] == "used" else ring.segment.geometry.slot_stride)
    if place in ("header", "entry"):
        names = list(ENTRY if place == "entry" else {**PAYLOAD, **ANSWER})
        name = names[index % len(names)]
        poke(ring.segment, *(entry_at(ring.segment, 0, name) if place == "entry" else ring.header_at(name)), value)
    else:
        poke(ring.segment, at + index * 8 % max(8, size // 8 * 8), min(8, size), value)


def extent(ring: BothSides, place: str) -> tuple[int, int]:
    """Where it lies in the segment, as the worker wrote it (another edit may have been there first)."""
    if place == "header":
        return ring.header_at("used")[0], 60
    if place == "entry":
        return entry_at(ring.segment, 0, "word")[0], 48
    if place in ("meta", "plan"):
        meta_at, meta_size, plan_at, plan_size = ring.described
        return (ring.area_at(meta_at), meta_size) if place == "meta" else (ring.area_at(plan_at), plan_size)
    at, size, pickled_at, pickled_size = ring.pickled
    return (ring.slot_at(at), size) if place == "table" else (ring.slot_at(pickled_at), pickled_size)


def look_up(ring: BothSides) -> None:
    """Remember where the parts of the batch lie, before anything is overwritten."""
    meta_at, meta_size, plan_at, plan_size = map(ring.header_of, ("meta_at", "meta_size", "plan_at", "plan_size"))
    ring.described = meta_at, meta_size, plan_at, plan_size
    at, size = ring.header_of("objects_at"), ring.header_of("objects_size")
    if size and not ring.worker.rows:
        pickled_at, pickled_size = struct.unpack("2q", os.pread(ring.segment.fd, 16, ring.slot_at(at)))
        ring.pickled = at, size, pickled_at, pickled_size


def memory_of(batch: Any) -> Iterator[tuple[int, int]]:
    """Every stretch of memory that the leaves of a batch can reach."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for item in batch:
            yield from memory_of(item)
    elif isinstance(batch, torch.Tensor):
        storage = batch.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    elif isinstance(batch, numpy.ndarray) and batch.size:
        yield numpy.lib.array_utils.byte_bounds(batch)


def touch(batch: Any) -> None:
    """Read every element."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        for item in batch:
            touch(item)
    elif isinstance(batch, torch.Tensor):
        torch.empty(0, dtype=torch.uint8).set_(batch.untyped_storage()).clone()
        if batch.numel() < 1 << 20:  # an overwritten view may have any number of elements
            batch.detach().clone()
    elif isinstance(batch, numpy.ndarray) and not batch.dtype.hasobject:
        batch.tobytes()


def written_elsewhere(ring: BothSides) -> bool:
    """Whether the task of the batch, or the other entry's area, is not what the trainer wrote."""
    task = os.pread(ring.segment.fd, 24, ring.area_at(0))
    other = os.pread(ring.segment.fd, 4096, ring.segment.geometry.area_offset(1 - ring.filled))
    return task != struct.pack("3q", 1, 2, 3) or any(other)


def survives(which: int, changes: list[Any], in_order: bool, from_start: bool) -> None:
    """Fill, overwrite, take: whatever is delivered lies inside the slot; all else is an exception.

    Or overwrite while it is filled: nothing is written outside the slot and what is behind the task.
    """
    with BothSides(in_order or which >= len(BATCHES)) as ring:
        if from_start and which < len(BATCHES):
            ring.claim([1, 2, 3])
            for place, index, value in changes:
                edit(ring, "entry" if place in ("entry", "meta") else "header", index, value)
            with contextlib.suppress(Exception):
                ring.writer.write(BATCHES[which])
            if written_elsewhere(ring):
                os.write(2, b"written where nothing of this batch is\n")
                os._exit(3)
            ring.worker.publish(FILLED)
            changes = []
        elif which < len(BATCHES):
            ring.fill(BATCHES[which])
        else:
            ring.fill_chunks(CHUNKS[which - len(BATCHES)], 2)
        look_up(ring)
        for change in changes:
            edit(ring, *change)
        first, last = ring.slot
        with contextlib.suppress(Exception):
            if ring.trainer.wait(0):
                batch = ring.delivery.read()
                ring.trainer.took()
                mapped = first - ring.slot_at(0), first - ring.slot_at(0) + ring.segment.geometry.mapped
                for start, end in memory_of(batch):
                    inside = first <= start <= end <= last
                    if not inside and start < mapped[1] and end > mapped[0]:
                        os.write(2, f"outside the slot: {(start, end)} of {ring.slot}\n".encode())
                        os._exit(3)
                touch(batch)


def main(seconds: float) -> None:
    end = time.monotonic() + seconds
    ran = 0
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # its shadow takes terabytes
        # a pickle that asks for all memory is to get an exception and not the machine
        most = psutil.Process().memory_info().vms + (4 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    @hypothesis.settings(max_examples=100_000, deadline=None, database=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(
        which=st.integers(0, len(BATCHES) + len(CHUNKS) - 1),
        changes=edits,
        in_order=st.booleans(),
        from_start=st.booleans(),
    )
    def run(which: int, changes: list[Any], in_order: bool, from_start: bool) -> None:
        nonlocal ran
        if time.monotonic() > end and ran > 5 * seconds:  # on a machine that is busy too
            raise TimeoutError
        print(f"survives({which}, {changes}, {in_order}, {from_start})")  # the last line is what crashed
        survives(which, changes, in_order, from_start)
        ran += 1

    with contextlib.suppress(TimeoutError):
        run()
    print(f"{ran} batches were read")


if __name__ == "__main__":
    main(float(sys.argv[1]))
