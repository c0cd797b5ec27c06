"""A worker's life: claim, fetch, collate into the slot, publish.

torch's own worker loop runs here, seeds and all; it takes its tasks from a queue and puts its batches into another.
RingQueues are all of its queues: a task is a sequence claimed from the ring, a batch is its payload published.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

from shmloader import generators
from shmloader._layout import Writer
from shmloader._ring import FILLED, KEPT, SKIPPED, WorkerSide
from shmloader._torch import ExceptionWrapper, ResumeIteration, run_worker_loop
from shmloader.collate import collate_into
from shmloader.orphan import follow
from shmloader.segment import Segment
from shmloader.stacks import Paper
from shmloader.tasks import read_task

Seed = Callable[[Any, int, int], Any]  # what generators.py seeds a task with


def work(
    segment: Segment,
    spin: bool,
    seeded: bool,
    worker_id: int,
    life: int,
    first: int,
    paper: Paper | None,
    arguments: dict[str, Any],
) -> None:
    """Be worker number `worker_id`, from the first task to the last.

    Args:
        segment: the ring's memory.
        spin: whether it may pause on its core before it sleeps.
        seeded: whether each sample is seeded for itself (generators.py).
        life: how many processes were workers of this ring before this one.
        first: a sequence below which all are done: 0, or more for a worker that takes a dead one's place.
        paper: where to write its stack when the trainer asks; None where nobody will.
        arguments: of torch's worker loop, without its queues.
    """
    follow(segment.trainer)
    # What is here by now, the dataset above all, is here to stay.  A full collection that looked through it would take
    # some 100 ms for a million objects, and where it was forked each of its pages would be copied.
    gc.freeze()
    if paper is not None:
        paper.tell()
    ring = WorkerSide(segment.mapping, segment.geometry, segment.memfd, spin, worker_id, life, first)
    seed = generators.seed_all if arguments["auto_collation"] else generators.seed_one
    queues = RingQueues(segment, ring, seed if seeded else None)
    # The process keeps what it was given until it ends.  A spawned one would keep the dataset by that, whose end must
    # come with the loop's, before multiprocessing ends what the dataset may use (torch >= 2.14).
    given = dict(arguments)
    arguments.clear()
    collate_into(queues.writer)
    with contextlib.suppress(KeyboardInterrupt):  # the trainer raises it as well
        run_worker_loop(queues=queues, worker_id=worker_id, **given)


class RingQueues:
    """The queues that torch's loop believes in, and the payload that the worker has claimed."""

    def __init__(self, segment: Segment, ring: WorkerSide, seed: Seed | None) -> None:
        self._segment = segment
        self._ring = ring
        self._seed = seed
        self.writer = Writer(ring, self._grow, self._grow_area)
        self._filled = False  # whether torch's loop has put a batch for the task claimed
        self._remembers = segment.geometry.memory_stride > 0
        self._begun = not self._remembers

    # ------------------------------------------------------------------------------- the queues of torch's loop

    def get(self, timeout: float | None = None) -> Any:
        """The next task, as (sequence, indices), or a word of torch's own; None when it is time to leave."""
        if self._ring.current >= 0:
            if self._remembers:
                self._ring.remember(generators.states())
            self._publish()
        written = self._ring.claim()
        if written is None:  # a task may be None too: what a sampler gave
            return None
        if not self._begun:
            self._begin()
        task = read_task(written)
        self.writer.begin(len(task) if self._ring.rows else 0)
        if isinstance(task, ResumeIteration):
            return task
        if self._seed is not None:
            task = self._seed(task, self._ring.seed, self._ring.row)
        return self._ring.sequence, task

    def _begin(self) -> None:
        """Go on as the worker whose place this one takes, if there was one; torch's loop has seeded by now."""
        self._begun = True
        left = self._ring.recall()
        if left is not None:
            generators.restore(left)

    def put(self, result: tuple[Any, Any]) -> None:
        """Write a batch into the payload.  It is published by the next get(), once torch's loop has let go of it."""
        try:
            self.writer.write(result[1])
        except Exception:
            self._write_exception(result[1])
        self._filled = True

    def is_set(self) -> bool:
        """Whether the trainer has ended the ring."""
        return self._ring.stopped

    def cancel_join_thread(self) -> None:
        """Nothing of ours is sent by a thread."""

    def close(self) -> None:
        """The memory goes with the process."""

    def _grow(self, size: int) -> None:
        """Have pages for the first `size` bytes of the payload."""
        self._segment.commit(self._ring, self._ring.current, size, self._ring.used)

    def _grow_area(self, size: int) -> None:
        """Have pages for the first `size` bytes of the entry's area."""
        self._segment.commit_answer(self._ring, size)

    def _write_exception(self, batch: Any) -> None:
        """What cannot be pickled, or does not fit, becomes an exception at its place in the order."""
        where = f"in DataLoader worker process {self._ring.me}"
        wrapped = ExceptionWrapper(where=where)
        if type(batch) is ExceptionWrapper:  # its class cannot be pickled: what it said still matters most
            wrapped = ExceptionWrapper((RuntimeError, RuntimeError(), None), where)
            wrapped.exc_msg = batch.exc_msg
        try:
            self.writer.write(wrapped)  # behind what was stacked there: a collate function may keep it
        except Exception:  # its class cannot be pickled, or memory is so short that its traceback does not fit
            self._ring.rewind()
            short = ExceptionWrapper((RuntimeError, RuntimeError(wrapped.exc_msg[-2000:]), None), where)
            self.writer.write(short)

    def _publish(self) -> None:
        outcome = FILLED if self._filled else SKIPPED  # torch's loop skips tasks once its dataset has ended
        self._filled = False
        if self._ring.kept():
            gc.collect()  # a cycle is no keeping
            if self._ring.kept():
                # Something here holds on to what default_collate returned: a collate function that remembers its
                # batches, a dataset that does.  It must not see the slot filled anew, so the trainer leaves this
                # payload alone for good, and from now on nothing is collated into slots.  See NOTE [ Slot ring ].
                outcome = KEPT
                self.writer.keep_apart()
        self._ring.publish(outcome)
