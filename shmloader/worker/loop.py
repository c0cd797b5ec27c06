"""A worker's life: claim, fetch, collate into the slot, publish.

What the user's code finds here is what torch's workers find: the same seeds, worker info, signal handlers, name and
number of threads, the same exceptions caught.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset

from shmloader import _torch
from shmloader.batch import objects
from shmloader.batch.chunk_walk import ChunkWalks
from shmloader.batch.containers import collate_containers_by
from shmloader.core.batch_writer import Writer
from shmloader.core.process import outlive_signals
from shmloader.core.ring import FILLED, KEPT, SKIPPED, SKIPPED_KEPT
from shmloader.core.worker import WorkerSide
from shmloader.ring.segment import Segment
from shmloader.ring.tasks import read_task
from shmloader.system.call_stacks import Paper
from shmloader.system.parents_death import begin
from shmloader.system.stack_samples import Looks
from shmloader.worker import random_states
from shmloader.worker.collate import collate_into
from shmloader.worker.exceptions import caught, error_as_state, write_instead
from shmloader.worker.fetch import Fetch, Left, Stream, fetch_from, state_at_first, state_when_fresh
from shmloader.worker.replace_bad_samples import Skips
from shmloader.wrapped_datasets import hearers

Seed = Callable[[Any, int, int, int], Any]  # what random_states.py seeds a task with


def work(
    segment: Segment,
    spin: bool,
    worker_id: int,
    life: int,
    first: int,
    paper: Paper | None,
    outlives: bool,
    arguments: dict[str, Any],
) -> None:
    """Be worker number `worker_id`, from the first task to the last.

    Args:
        segment: the ring's memory.
        spin: whether it may pause on its core before it sleeps.
        life: how many processes were workers of this ring before this one.
        first: a sequence below which all are done: 0, or more for a worker that takes a dead one's place.
        paper: where to write its stack when the trainer asks; None where nobody will.
        outlives: whether it goes on when its group is sent a signal: NOTE [ Group signals ].
        arguments: of Worker, but for those above.
    """
    begin(segment.trainer, outlives)
    _torch.set_worker_signal_handlers()
    if outlives:
        outlive_signals(segment.trainer)  # again: torch has a handler for SIGTERM, too
    # What is here by now, the dataset above all, is here to stay.  A full collection that looked through it would take
    # some 100 ms for a million objects, and where it was forked each of its pages would be copied.
    gc.freeze()
    if paper is not None:
        paper.tell()
    ring = WorkerSide(segment, spin, worker_id, life, first)
    # The process keeps what it was given until it ends.  A spawned one would keep the dataset by that, whose end must
    # come with the loop's, before multiprocessing ends what the dataset may use (torch >= 2.14).
    given = dict(arguments)
    arguments.clear()
    with contextlib.suppress(KeyboardInterrupt):  # the trainer raises it as well
        Worker(segment, ring, **given).run()
    _torch.set_worker_info(None)


class Worker:
    """What a worker process does with one dataset.

    Args:
        segment, ring: the memory, and this worker's side of it.
        dataset, auto_collation, collate_fn, drop_last: see fetch.py.
        base_seed: of the loader's iterator; this worker's is `base_seed` + its number.
        init_fn: the loader's `worker_init_fn`.
        num_workers: how many there are.
        seeds_samples: whether each sample is seeded for itself (random_states.py).
        left: where each worker's stream goes on in the first epoch; None: they begin.
        dataset_epoch: the last one that the trainer's dataset got by set_epoch(); None: none.
        pool: what replaces bad samples (replace_bad_samples.py); None: nothing does.
        persists: whether it may make another epoch behind the first one.
        stride: with seeds_samples, how many places of the epoch's order one sample of a batch is behind the other.
    """

    def __init__(
        self,
        segment: Segment,
        ring: WorkerSide,
        *,
        dataset: Any,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        base_seed: int,
        init_fn: Callable[[int], Any] | None,
        num_workers: int,
        seeds_samples: bool,
        persists: bool,
        stride: int,
        dataset_epoch: int | None,
        left: list[Left] | None,
        pool: Any = None,
    ) -> None:
        self._segment = segment
        self._ring = ring
        self._chunks = ChunkWalks()
        self._writer = Writer(ring, objects, self._chunks)
        self._remembers = segment.geometry.memory_stride > 0
        self._taking_over = self._remembers
        self._seed: Seed | None = None
        if seeds_samples:
            self._seed = random_states.seed_all if auto_collation else random_states.seed_one
        self._stride = stride
        self._where = f"in DataLoader worker process {ring.me}"
        self._streams = isinstance(dataset, IterableDataset)
        self._skips = None if pool is None else Skips(dataset, pool)
        self._fetching = dataset, auto_collation, collate_fn, drop_last, self._writer, self._skips
        self._fetch: Fetch | None = None
        self._is_over = False  # the stream, in this epoch
        self._epoch: int | None = None  # whatever it is when it begins
        self._keeps_before = persists and not seeds_samples
        self._before: bytes | None = None  # the random states before that epoch
        self._default = collate_into(self._writer)
        self._be_torchs_worker(dataset, base_seed, num_workers)
        self._error: Any = None  # why it could not begin: raised in place of the first batch
        self._left: Left | None = None
        self._fresh: Any = None  # what a stream said of itself before it was restored, for its next epoch
        self._state_at_end: bytes | None = None  # by the stream
        self._dataset_epoch: int | None = None
        self._looks: Looks | None = None
        self._begin(dataset_epoch, init_fn, None if left is None else left[ring.me])

    def _be_torchs_worker(self, dataset: Any, base_seed: int, num_workers: int) -> None:
        """Be, to the user's code, what it finds in a worker of torch's."""
        me = self._ring.me
        _torch.set_thread_name("pt_data_worker")
        torch.set_num_threads(1)
        seed = random_states.seed_worker(base_seed, me)
        _torch.set_worker_info({"id": me, "num_workers": num_workers, "seed": seed, "dataset": dataset})

    def run(self) -> None:
        """Do what there is to do until it is time to leave."""
        try:
            self._make_batches()
        finally:
            if self._looks is not None:  # the interpreter's end resets handlers, and then the timer would kill
                self._looks.end()

    def _make_batches(self) -> None:
        ring = self._ring
        while (written := ring.claim()) is not None:
            if self._looks is not None:
                self._looks.begin()
            if self._taking_over:
                self._take_over()
            if ring.epoch != self._epoch:
                if self._keeps_before:
                    self._undo_what_was_drawn()
                # a worker in a dead one's place has begun the epoch when it was made, if no set_epoch() came since
                if self._epoch is not None or ring.dataset_epoch != self._dataset_epoch:
                    self._begin(ring.dataset_epoch)
                self._epoch = ring.epoch
                if self._skips is not None:
                    self._skips.begin(ring.epoch_seed)
            task = read_task(written)
            self._writer.begin(len(task) if ring.rows else 0)
            if ring.rows:
                collate_containers_by(self._chunks.containers)
            if self._seed is not None:
                task = self._seed(task, ring.seed, ring.row, self._stride)
            outcome = self._fill(task)
            if self._remembers:
                ring.remember(random_states.states())
            if self._streams:
                self._leave_state()
            if ring.has_views():
                outcome = self._let_go_or_keep(outcome)
            ring.publish(outcome)
            if self._looks is not None:
                self._looks.end()

    def _take_over(self) -> None:
        """Go on as the worker whose place this one takes, if there was one; what is seeded was by now."""
        self._taking_over = False
        left = self._ring.recall()
        if left is not None:
            random_states.restore(left)

    def _undo_what_was_drawn(self) -> None:
        """If the epoch before was begun early and is not the user's, go on drawing where that one began."""
        if self._before is not None and self._ring.drops and self._epoch == self._ring.epoch - 1:
            random_states.restore(self._before)
        self._before = random_states.states()

    def _begin(
        self, dataset_epoch: int | None, init_fn: Callable[[int], Any] | None = None, left: Left | None = None
    ) -> None:
        """Begin the first epoch, or another one where workers persist: streams begin anew, and so does what failed.

        Args:
            dataset_epoch: for the dataset's set_epoch(); None: it is not called.
            init_fn: the loader's `worker_init_fn`.
            left: where a stream goes on; None: it begins.
        """
        self._is_over, self._error = False, None
        self._left, self._state_at_end = left, None
        dataset = self._fetching[0]
        try:
            if self._fresh is not None:
                dataset.load_state_dict(self._fresh)
            self._fresh = state_when_fresh(dataset, left)
            if init_fn is not None:
                init_fn(self._ring.me)
            if self._looks is None and self._segment.sheet is not None:
                self._looks = Looks(self._segment.sheet, self._ring.me)
            if dataset_epoch is not None:
                self._dataset_epoch = dataset_epoch
                for hearer in hearers(dataset):
                    hearer.set_epoch(dataset_epoch)
            self._fetch = fetch_from(*self._fetching, left, self._ring.fetched, self._default)
        except Exception:
            self._fetch, self._error = None, caught(self._where)

    def _fill(self, task: Any) -> int:
        """Fetch a batch and write it into the payload; the outcome to publish."""
        if self._is_over:  # tasks were under way when it ended; asked again, some streams begin anew
            return SKIPPED
        if self._error is not None:
            # A stream that cannot go on from a place says so each time.  Otherwise it is said once, as in torch.
            batch, self._error = self._error, self._error if self._left is not None else None
        else:
            try:
                if self._fetch is not None:
                    fetcher = self._fetch
                batch = fetcher(task)  # a worker that could not begin has none, and says so in torch's words
            except Exception as error:
                if self._ring.forked:  # no worker: it ends by what it raised, as any process does
                    raise
                if isinstance(error, StopIteration) and self._streams:
                    self._is_over = True
                    return SKIPPED
                batch = caught(self._where)
        try:
            self._writer.write(batch)
        except Exception:
            write_instead(self._writer, self._ring, batch, self._where)
        if self._skips is not None and (said := self._skips.report()):
            try:
                self._ring.report(said)
            except Exception:  # there is no memory for it, and a batch must not come as if all its samples were good
                write_instead(self._writer, self._ring, None, self._where)
        return FILLED

    def _leave_state(self) -> None:
        """Leave what the stream says of itself behind this batch, or at its end, before that is published."""
        said = self._state_at_end
        if said is None:
            said = self._stream_state()
        if self._is_over:  # it says nothing else from now on, and tasks may be under way
            self._state_at_end = said
        with contextlib.suppress(MemoryError):  # the trainer finds that out, and says so to whoever asks for a state
            self._ring.leave_state(said)

    def _stream_state(self) -> bytes:
        """What the stream says of itself; what is raised there is raised again for whoever asks for a state."""
        try:
            if isinstance(self._fetch, Stream):
                return self._fetch.state()
            return b"" if self._left is None else state_at_first(self._left)
        except Exception:
            return error_as_state(self._where)

    def _let_go_or_keep(self, outcome: int) -> int:
        """What to publish where something here holds on to what default_collate returned.

        A collate function may remember its batches, or a dataset.  It must not see the slot filled anew, so the trainer
        leaves this payload alone for good, and from now on nothing is collated into slots: NOTE [ Slot ring ].
        """
        gc.collect()  # a cycle is no keeping
        if not self._ring.has_views():
            return outcome
        self._writer.keep_apart()
        return SKIPPED_KEPT if outcome == SKIPPED else KEPT
