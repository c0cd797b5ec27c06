"""A worker's life: claim, fetch, collate into the slot, publish.
It begins epochs (worker_init_fn, set_epoch), catches exceptions, and gives up the slot of a batch that user code keeps.

The user's code finds the same as in torch's workers: the same seeds, worker info, signal handlers, name and number of
threads, and the same exceptions caught.

A worker saves its random states (random_states.py) and its stream's state after each batch.  `restore_stream` and
`pass_over` in fetch.py resume a stream.  NOTE [ Cells ] in resume/stream_states.py says which batch's state a loader's
state has.

An exception is sent in place of its batch, in the form in which torch's workers send it. Worker._fill catches it.
Steps.bring() in next_batch.pxi raises it in the batch's turn, by raise_again() of batch/exceptions.py, and the epoch
continues with the next batch.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import torch
from torch.utils.data import IterableDataset

from shmloader.batch import objects
from shmloader.batch.chunk_walk import walk_chunk
from shmloader.batch.exceptions import caught
from shmloader.core.batch_writer import Writer
from shmloader.core.process import keep_freed_memory, outlive_signals
from shmloader.core.ring import FILLED, KEPT, SKIPPED, SKIPPED_KEPT
from shmloader.core.worker import WorkerSide
from shmloader.private import of_torch
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.protocols.user_objects import load_state
from shmloader.ring.segment import Segment
from shmloader.ring.tasks import read_listed, read_task
from shmloader.system.call_stacks import StackMemory
from shmloader.system.parents_death import begin
from shmloader.system.stack_samples import Sampler
from shmloader.worker import random_states
from shmloader.worker.collate import collate_into
from shmloader.worker.fetch import (
    Fetch,
    Left,
    StateCosts,
    Stream,
    fetch_from,
    is_restored,
    state_at_first,
    state_when_fresh,
)
from shmloader.worker.look_ahead import LookAhead, prefetching
from shmloader.worker.numbered_copy import NumberedCopy
from shmloader.worker.replace_bad_samples import Skips
from shmloader.worker.their_fetcher import TheirStream, theirs

_SHORT = 2000  # characters of a traceback: its end has the exception


def error_as_state(where: str) -> bytes:
    """The exception that is being handled, in place of a stream's state: pickled, in a tuple of its own."""
    return pickle.dumps((caught(where),))


def write_instead(writer: Writer, ring: WorkerSide, batch: Any, where: str) -> None:
    """Write the exception that is being handled in place of a batch that cannot be pickled, or does not fit.

    Args:
        writer, ring: The destination.
        batch: The batch that could not be written.
        where: See caught().
    """
    is_mine = type(batch) is not ExceptionWrapper
    wrapped = caught(where) if is_mine else batch
    kind = MemoryError if is_mine and isinstance(sys.exc_info()[1], MemoryError) else RuntimeError
    try:
        writer.write(wrapped)  # after the stacked tensors, which a collate function may keep
    except Exception:  # memory is too short for its traceback
        ring.rewind()
        short = ExceptionWrapper((kind, kind(wrapped.exc_msg[-_SHORT:]), None), where)
        writer.write(short)


Seed = Callable[[Any, int, Any, int], Any]  # a function of random_states.py that seeds a task


def work(
    segment: Segment,
    spin: bool,
    worker_id: int,
    first: int,
    stacks: StackMemory | None,
    outlives: bool,
    arguments: dict[str, Any],
) -> None:
    """Be worker number `worker_id`, from the first task to the last.

    Args:
        segment: the ring's memory.
        spin: whether it may pause on its core before it sleeps.
        first: a sequence below which all are done: 0, or more for a worker that replaces a dead one.
        stacks: memory for its stack when the trainer asks; None: the trainer does not ask.
        outlives: whether it survives signals to its group: NOTE [ Group signals ].
        arguments: the other arguments of Worker.
    """
    begin(segment.trainer, outlives)
    of_torch.set_worker_signal_handlers()
    if outlives:
        outlive_signals(segment.trainer)  # again, because torch has set a handler for SIGTERM
    keep_freed_memory()
    # The objects that exist now, above all the dataset, live as long as the worker.  A full collection of them would
    # take some 100 ms for a million objects, and would copy each of their pages if they were forked.
    gc.freeze()
    if stacks is not None:
        stacks.tell()
    ring = WorkerSide(segment, spin, worker_id, first)
    # A process keeps its arguments until it ends.  At a spawned worker's end, multiprocessing ends things that the
    # dataset may use (torch >= 2.14).  So the dataset is taken out of the arguments, and is freed with the loop.
    given = dict(arguments)
    arguments.clear()
    with contextlib.suppress(KeyboardInterrupt):  # the trainer raises it too
        Worker(segment, ring, **given).run()
    of_torch.set_worker_info(None)


class Worker:
    """The work of a worker process with one dataset.

    Args:
        segment, ring: the memory, and this worker's side of it.
        dataset, auto_collation, collate_fn, drop_last: see fetch.py.
        base_seed: of the loader's iterator; this worker's is `base_seed` + its number.
        init_fn: the loader's `worker_init_fn`.
        num_workers: how many there are.
        seeds_samples: whether each sample is seeded (random_states.py).
        left: the place from which each worker's stream continues in the first epoch; None: its beginning.
        dataset_epoch: for a stream, the number of its first epoch from set_epoch(); None: none.
        numbers: those that the dataset has here: NumberedCopy.
        epoch_seed: the seed of the first epoch.
        look_ahead: how many batches' indices the dataset's __prefetch__ gets early (look_ahead.py); None: the default.
        pool: the indices of samples that may replace bad ones (replace_bad_samples.py); None: none are replaced.
        stride: with seeds_samples, how far apart in the epoch's order the samples of a batch are.
        watches_states: whether it warns if its stream's states take long.  One worker does, once for a loader.
    """

    def __init__(
        self,
        segment: Segment,
        ring: WorkerSide,
        *,
        dataset: Any,
        num_workers: int,
        auto_collation: bool = True,
        collate_fn: Callable[[Any], Any] = list,
        drop_last: bool = False,
        base_seed: int = 0,
        init_fn: Callable[[int], Any] | None = None,
        seeds_samples: bool = False,
        stride: int = 1,
        dataset_epoch: int | None = None,
        left: list[Left] | None = None,
        look_ahead: int | None = None,
        pool: Any = None,
        watches_states: bool = False,
        numbers: Callable[[], list[int | None]] = list,
        epoch_seed: int = 0,
    ) -> None:
        self._segment = segment
        self._ring = ring
        self._writer = Writer(ring, objects, walk_chunk)
        self._cycles: bool | None = None  # whether only the collector drops references to batches; None: not known
        self._remembers = segment.geometry.memory_stride > 0
        self._taking_over = self._remembers
        self._seed: Seed | None = None
        if seeds_samples:
            self._seed = random_states.seed_all if auto_collation else random_states.seed_one
        self._stride = stride
        self._where = f"in DataLoader worker process {ring.me}"
        self._streams = isinstance(dataset, IterableDataset)
        self._costs = StateCosts(dataset, ring.me) if watches_states and ring.me == 0 else None
        self._skips = None if pool is None else Skips(dataset, pool)
        self._fetching = dataset, auto_collation, collate_fn, drop_last, self._writer, self._skips
        self._fetch: Fetch | None = None
        self._look_ahead = look_ahead
        self._ahead: LookAhead | None = None
        self._is_over = False  # whether the stream has ended in this epoch
        self._epoch: int | None = None  # None before the first, which may have any number
        self._default = collate_into(self._writer)
        self._be_torchs_worker(dataset, base_seed, num_workers)
        self._error: Any = None  # why it could not begin; it comes in place of the first batch
        self._lost: Any = None  # why it has no dataset; it comes in place of each batch
        self._left: Left | None = None
        self._fresh: Any = None  # a stream's state from before it was restored; its next epoch needs it
        self._state_at_end: bytes | None = None  # the stream's
        self._copy = NumberedCopy(dataset, numbers)
        self._sampler: Sampler | None = None
        self._begin(dataset_epoch, epoch_seed, init_fn, None if left is None else left[ring.me])

    def _be_torchs_worker(self, dataset: Any, base_seed: int, num_workers: int) -> None:
        """Set what the user's code finds in a worker of torch's."""
        me = self._ring.me
        of_torch.set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        seed = random_states.seed_worker(base_seed, me)
        of_torch.set_worker_info({"id": me, "num_workers": num_workers, "seed": seed, "dataset": dataset})

    @classmethod
    def that_cannot_begin(cls, segment: Segment, ring: WorkerSide, error: Any) -> Worker:
        """A worker that has no dataset, because that could not be unpickled; each of its batches is the error."""
        worker = cls(segment, ring, dataset=(), num_workers=ring.workers)
        worker._lost = worker._error = error
        worker._fetch = None
        return worker

    def run(self) -> None:
        """Do all tasks, until the ring is closed."""
        claim, make = self._ring.claim, self.make
        try:
            while (written := claim()) is not None:
                make(written)
        finally:
            self.end()

    def end(self) -> None:
        """Make nothing more."""
        if self._sampler is not None:
            self._sampler.end()

    def make(self, written: Any) -> None:
        """Make what was claimed: a batch, or a chunk of one."""
        ring = self._ring
        if self._costs is not None:
            self._costs.begin()
        if self._sampler is not None:
            self._sampler.begin()
        if self._taking_over:
            self._take_over()
        if ring.epoch != self._epoch:
            if self._epoch is not None:  # otherwise it has begun in __init__
                self._begin(ring.dataset_epoch, ring.epoch_seed)
            self._epoch = ring.epoch
            if self._skips is not None:
                self._skips.begin(ring.epoch_seed)
        if (number := ring.dataset_epoch) is not None and number != self._copy.number:
            self._follow(number)
        task, rows = read_listed(written) if ring.listed else (read_task(written), None)
        self._writer.begin(len(task) if ring.rows else 0, rows)
        if self._seed is not None:
            task = self._seed(task, ring.seed, ring.row if rows is None else rows, self._stride)
        outcome = self._fill(task)
        if self._remembers:
            ring.remember(random_states.states())
        if self._streams:
            self._leave_state()
        if ring.has_views():
            outcome = self._let_go_or_keep(outcome)
        ring.publish(outcome)
        if self._sampler is not None:
            self._sampler.end()

    def _take_over(self) -> None:
        """Continue as the worker that this one replaces, if there was one.  Replaces the seeds of __init__."""
        self._taking_over = False
        left = self._ring.recall()
        if left is not None:
            random_states.restore(left)

    def _begin(
        self, number: int | None, seed: int, init_fn: Callable[[int], Any] | None = None, left: Left | None = None
    ) -> None:
        """Begin the first epoch, or another one with persistent workers.  Streams start again.

        Args:
            number: which the dataset must have from set_epoch(); None: any.
            seed: of the epoch.
            init_fn: the loader's `worker_init_fn`.
            left: the place from which a stream continues; None: its beginning.
        """
        self._is_over, self._error = False, self._lost
        self._left, self._state_at_end = left, None
        dataset = self._fetching[0]
        if self._lost is not None:
            return
        try:
            if self._fresh is not None:
                load_state(dataset, self._fresh)
            self._fresh = state_when_fresh(dataset, left)
            if init_fn is not None:
                init_fn(self._ring.me)
            if self._sampler is None and self._segment.sheet is not None:
                self._sampler = Sampler(self._segment.sheet, self._ring.me)
            loads = self._streams and is_restored(dataset, left)
            if loads:
                self._copy.forget()
            if number is not None and number != self._copy.number:
                self._copy.set_epoch(number, seed)
            if loads:
                self._copy.forget()  # also for the next epoch, which may load the fresh state
            self._ahead = prefetching(dataset, self._ring, self._look_ahead, self._fetching[1])
            made = theirs(*self._fetching[:4], self._needs_torchs_fetcher(), left, self._ring.fetched)
            if made is None:
                made = fetch_from(*self._fetching, left, self._ring.fetched, self._default)
            self._fetch = made
        except Exception:
            self._ahead, self._fetch, self._error = None, None, caught(self._where)

    def _follow(self, number: int) -> None:
        """Have the dataset follow the trainer's within an epoch.  A stream does not: NOTE [ Numbers of copies ]."""
        if self._streams or self._fetch is None:
            return
        try:
            self._copy.set_epoch(number, self._ring.epoch_seed)
        except Exception:
            self._ahead, self._fetch, self._error = None, None, caught(self._where)

    def _needs_torchs_fetcher(self) -> str | None:
        """An option of the loader with which samples are made one by one; None if it has none."""
        if self._seed is not None:
            return "sample_seeds or schedule='steal'"
        return None if self._skips is None else "on_bad_sample='skip'"

    def _fill(self, task: Any) -> int:
        """Fetch a batch and write it into the payload; returns the outcome to publish."""
        if self._is_over:  # tasks may be under way when a stream ends, and some streams would start again
            return SKIPPED
        if self._error is not None:
            # A stream that cannot be resumed raises for each task.  Otherwise the error comes once, as in torch.
            batch, self._error = self._error, self._error if self._left is not None else self._lost
        else:
            try:
                if self._fetch is not None:
                    fetcher = self._fetch
                if self._ahead is not None:
                    self._ahead.look(task)
                batch = fetcher(task)  # for a worker that could not begin, it raises in torch's words
            except Exception as error:
                if self._ring.forked:  # this is a forked child of the worker: it ends by its error, as any process
                    raise
                if isinstance(error, StopIteration) and self._streams:
                    self._is_over = True
                    return SKIPPED
                batch = caught(self._where)
        if self._cycles is not False:  # now, because parts of the slot that nothing views are used again
            before = self._ring.unused_parts()
            gc.collect()
            self._cycles = self._cycles or self._ring.unused_parts() > before
        try:
            self._writer.write(batch)
        except Exception:
            write_instead(self._writer, self._ring, batch, self._where)
        if self._skips is not None and (report := self._skips.report()):
            try:
                self._ring.report(report)
            except Exception:  # no memory for the report: raise, because otherwise the bad samples would not be counted
                write_instead(self._writer, self._ring, None, self._where)
        return FILLED

    def _leave_state(self) -> None:
        """Write the stream's state after this batch, or at its end, before that is published."""
        asked = 0 if self._costs is None else monotonic_ns()
        state = self._state_at_end
        if state is None:
            state = self._stream_state()
        if self._is_over:  # its state does not change any more, and tasks may be under way
            self._state_at_end = state
        with contextlib.suppress(MemoryError):  # the trainer sees that it is missing, and state_dict() warns
            self._ring.leave_state(state)
        if self._costs is not None:
            self._costs.add(asked)

    def _stream_state(self) -> bytes:
        """The stream's state.  If it raises, state_dict() in the trainer raises the same."""
        try:
            if isinstance(self._fetch, (Stream, TheirStream)):
                return self._fetch.state()
            return b"" if self._left is None else state_at_first(self._left)
        except Exception:
            return error_as_state(self._where)

    def _let_go_or_keep(self, outcome: int) -> int:
        """The outcome to publish if a reference to the batch that default_collate returned is kept here.

        A collate function or a dataset may keep its batches, and must not see their slot filled again.  So the trainer
        does not use this payload again, and from now on nothing is collated into slots: NOTE [ Slot ring ].
        """
        gc.collect()  # a reference from a cycle does not count
        self._cycles = not self._ring.has_views()
        if self._cycles:
            return outcome
        self._writer.apart = True
        return SKIPPED_KEPT if outcome == SKIPPED else KEPT
