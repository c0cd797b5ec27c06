"""What a worker is asked to do: a batch's indices, written into a task area."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shmloader._trainer import TrainerSide
from shmloader.ring.segment import Segment

MOST = 1 << 63  # indices below this one, and not below its negative, are written as they are


def open_task(ring: TrainerSide, segment: Segment, worker: int, task: Any, seed: int = 0) -> None:
    """Give the next batch to a worker, or to ANY.

    Lists of ints and single ints, which samplers give, are written as they are.  Anything else is pickled.

    Args:
        seed: of the batch.
    """
    written = task if type(task) is list or type(task) is int else _pickled(task)
    while wanted := ring.open(worker, written, seed):
        if wanted < 0:
            written = _pickled(task)  # not all of its items are ints of 64 bits
        else:
            segment.commit_task(ring, ring.next_entry, wanted)


def open_chunks(ring: TrainerSide, segment: Segment, workers: list[int], chunks: list[list[Any]], seed: int) -> None:
    """Give the next batch, cut into chunks, to workers, or to ANY; the ring must have room for all of them.

    A batch is opened whole or not at all, so everything that can fail comes first.
    """
    written = [chunk if _is_plain(chunk) else _pickled(chunk) for chunk in chunks]
    for k, task in enumerate(written):
        entry = (ring.sequences.next_open + k) % ring.entries
        wanted = len(task) if type(task) is bytes else 8 * len(task)
        if wanted > ring.task_room_of(entry):
            segment.commit_task(ring, entry, wanted)
    ring.open_chunks(workers, written, [len(chunk) for chunk in chunks], seed)


def _is_plain(chunk: list[Any]) -> bool:
    return all(type(index) is int and -MOST <= index < MOST for index in chunk)


def read_task(written: Any) -> Any:
    """What open_task() was given, from what WorkerSide.claim() returned."""
    return pickle.loads(written) if type(written) is bytes else written


def _pickled(task: Any) -> bytes:
    return bytes(ForkingPickler.dumps(task))
