"""What a worker is asked to do: a batch's indices, or a word of torch's own, written into a task area."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shmloader._ring import TrainerSide
from shmloader.segment import Segment


def open_task(ring: TrainerSide, segment: Segment, worker: int, task: Any) -> None:
    """Give the ring's next sequence to a worker.

    Lists of ints and single ints, what samplers give, are written as they are; anything else is pickled.
    """
    written = task if type(task) is list or type(task) is int else _pickled(task)
    while wanted := ring.open(worker, written):
        if wanted < 0:
            written = _pickled(task)  # not all of its items are ints of 64 bits
        else:
            segment.commit_task(ring, ring.next_entry, wanted)


def read_task(written: Any) -> Any:
    """What open_task() was given, from what WorkerSide.claim() returned."""
    return pickle.loads(written) if type(written) is bytes else written


def _pickled(task: Any) -> bytes:
    return bytes(ForkingPickler.dumps(task))
