"""One epoch after another: torch's own conductor, with the ring in place of its queues.

torch's multi-process iterator decides what is asked of whom, and in which order batches are handed out; that is the
contract people rely on, so it is reused and not written again.  Its queues are the ring: to put an index into a
worker's queue is to open a sequence, to get a result is to take one.  Where nothing but the order is to be kept, for
map-style datasets, DirectIterator leaves that to the ring alone.

NOTE [ Shutdown ]

    1. An iterator ends when its epoch does (unless its workers persist), when it is closed, or when it is collected;
       whichever comes first, once.  At interpreter exit nothing is done: multiprocessing terminates the workers, which
       are daemons, and the kernel frees memory that has no name.
    2. The order: `stop` is raised and every worker's bell tolled; the watching thread is ended; all workers are
       joined by one deadline, then terminated, then killed; only then the memory is given back, for a worker that is
       still filling a slot must not fault.
    3. A worker whose trainer is gone is ended whatever it is doing (orphan.py), a spawned one also while it imports
       the trainer's script.
    4. A forked child that drops its copy of an iterator must end nobody: it is recognised by its pid.
    5. Batches that are still lent live on; see NOTE [ Lease ].
    6. Threads that call the device (ahead.py, pinning.py) are the exception to 1: they are ended by an atexit hook,
       for a thread that comes back from a call into an interpreter that is gone takes the process down with it.
"""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset

from shmloader import _torch
from shmloader._ring import ANY, TrainerSide
from shmloader._torch import profiler
from shmloader.accelerator import accelerator_of
from shmloader.crew import Crew
from shmloader.delivery import NOTHING, Delivery
from shmloader.generators import mix
from shmloader.pinning import IN_TRANSIT, Pinning
from shmloader.segment import Segment
from shmloader.tasks import open_task

FURTHER = 4  # times as many batches under way, where work is stolen and they are small
AHEAD_BYTES = 256 << 20  # that these may take


class RingIterator(_torch._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Iterates over the batches of a DataLoader through a ring of its own.

    It can be closed, and used as a context manager; an iterator that is dropped closes itself.
    """

    _crew: Crew | None = None
    _shutdown = True
    _pinning: Pinning | None = None
    _interrupted = False
    copies_to_pin = False  # batches are copied into page-locked memory: to be done by a thread that is ahead

    def __init__(self, loader: DataLoader[Any]) -> None:
        _torch._BaseDataLoaderIter.__init__(self, loader)
        self.loader = weakref.ref(loader)
        self._prefetch_factor: int = loader.prefetch_factor  # type: ignore[assignment]
        self._in_order = loader.in_order
        if self._num_workers <= 0:
            raise AssertionError("num_workers must be greater than 0 for MultiProcessingDataLoaderIter")
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._worker_init_fn = loader.worker_init_fn
        self._profile_name = f"enumerate(DataLoader)#{_torch._MultiProcessingDataLoaderIter.__name__}.__next__"
        self._owner = os.getpid()
        self._make_ring(loader)
        try:
            self._begin(loader)
        except BaseException:
            self._shutdown_workers()
            raise

    def _begin(self, loader: Any) -> None:
        """Start the workers, then open what they are to do first: torch's order, which a sampler may rely on."""
        self._hire(loader)
        self._reset(loader, first_iter=True)

    def _make_ring(self, loader: Any) -> None:
        """Make the ring, and what stands around it; nobody works on it yet."""
        cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # torchrun's ranks share
        self._spin = cores > self._num_workers + 1  # on its core; else it would keep a worker from it
        respawn = loader.on_worker_death == "respawn"
        device = accelerator_of(loader)
        entries, batches = self._ring_size(loader)
        spare, memory = loader.spare_slots, self._ring_memory(loader)
        if device is not None and spare:
            spare += IN_TRANSIT
        if device is not None and memory == "auto":
            memory = "memfd"  # what is page-locked may not move there
        self._segment = Segment(
            self._num_workers,
            entries,
            batches,
            spare,
            memory,
            loader.max_ring_bytes,
            remember=respawn and loader.schedule != "steal",  # there each sample is seeded, and nothing is drawn on
        )
        segment = self._segment
        self._ring = TrainerSide(segment.mapping, segment.geometry, segment.memfd, self._spin, spare, self._in_order)
        segment.format(self._ring)
        ends = isinstance(self._dataset, IterableDataset)
        if device is None:
            self._delivery = Delivery(self._ring, spare, ends)
        else:
            self._pinning = Pinning(self._ring, device, loader.strict_pinning, private=loader.device is not None)
            self._delivery = Delivery(self._ring, spare, ends, self._pinning, device.clone)
        self._tags: dict[int, Any] = {}  # by sequence, what torch's part put into the queues: results come back by it
        self._early: list[tuple[Any, Any]] = []  # results that were taken before they were asked for
        self._crew = Crew(
            loader.multiprocessing_context or torch.multiprocessing,
            self._ring,
            segment,
            respawn=respawn,
            reissue=not isinstance(self._dataset, IterableDataset),
            timeout=self._timeout,
        )
        self._workers = self._crew.workers
        self._shutdown = False
        self._workers_done_event = _Done(self._ring)
        self._index_queues = [_IndexQueue(self, k) for k in range(self._num_workers)]

    def _hire(self, loader: Any) -> None:
        """Start the workers, and the thread that page-locks."""
        assert self._crew is not None
        self._crew.start(
            self._num_workers,
            self._spin,
            loader.schedule == "steal",
            {
                "dataset_kind": self._dataset_kind,
                "dataset": self._dataset,
                "auto_collation": self._auto_collation,
                "collate_fn": self._collate_fn,
                "drop_last": self._drop_last,
                "base_seed": self._base_seed,
                "init_fn": self._worker_init_fn,
                "num_workers": self._num_workers,
                "persistent_workers": self._persistent_workers,
                "shared_seed": self._shared_seed,
            },
        )
        if self._pinning is not None:
            self.copies_to_pin = not self._pinning.start()
            if self._pinning.thread is not None:
                self._pin_memory_thread = self._pinning.thread
        self._worker_pids_set = True

    def _ring_size(self, loader: Any) -> tuple[int, int]:
        """How many sequences, and how many batches, may be in flight."""
        batches = self._num_workers * self._prefetch_factor
        return batches, batches

    def _ring_memory(self, loader: Any) -> Any:
        return loader.ring_memory

    # -------------------------------------------------------------------------------------------- torch's queues

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._interrupted = False
        while self._ring.in_flight:  # an epoch left half-way: its entries must be free before new ones are opened
            self._await()
            self._delivery.discard()
        self._tags.clear()
        self._early.clear()
        super()._reset(loader, first_iter)

    def _await(self) -> None:
        """Wait for the next sequence in order, or for any; look after workers that die or hang meanwhile."""
        assert self._crew is not None
        while True:
            try:
                if self._ring.wait(self._timeout or -1):
                    return
            except RuntimeError as error:  # torch's SIGCHLD handler may run in there
                self.explain(error)
            if self._shutdown or self._interrupted:
                raise StopIteration
            if self._ring.alarmed:
                self._crew.look_after()
                if self._shutdown or self._interrupted:  # another thread's alarm was taken for the one looked after
                    raise StopIteration
            else:
                self._crew.raise_or_kill(self._ring.awaited() if self._in_order else None)

    def interrupt(self) -> None:
        """Have the thread that is in next(), or comes there, get StopIteration at once, until the iterator is reset."""
        self._interrupted = True
        self._ring.alarm()

    def explain(self, error: RuntimeError) -> NoReturn:
        """Raise torch's error for a worker that died, with what it held; any other error as it is."""
        assert self._crew is not None
        self._crew.raise_explained(error)

    def _get_data(self) -> tuple[Any, Any]:
        return self._early.pop(0) if self._early else self._take()

    def _take(self) -> tuple[Any, Any]:
        while True:
            self._await()
            batch = self._delivery.take()
            tag = self._tags.pop(self._ring.taken)
            if batch is not NOTHING:
                return tag, batch

    # --------------------------------------------------------------------------------------------- the end

    def _shutdown_workers(self) -> None:
        """See NOTE [ Shutdown ]."""
        if self._shutdown or _torch.is_exiting() or self._owner != os.getpid():
            return
        if self._pinning is not None and self._pinning.thread is threading.current_thread():
            # The collector runs in it, in the middle of whatever it does with the ring's memory.
            threading.Thread(target=self._shutdown_workers, name="shmloader_end").start()
            return
        self._shutdown = True
        self._rcvd_idx = self._send_idx = 0  # it is at its end
        assert self._crew is not None
        try:
            self._ring.alarm()  # ends the wait of another thread
            self._crew.stop()
        finally:
            self._worker_pids_set = False
            if self._pinning is not None:
                self._pinning.close()
            self._ring.close()
            self._segment.close()

    def stop_threads(self) -> None:
        """End the threads that call the device, and nothing else."""
        if self._pinning is not None and self._owner == os.getpid():
            self._pinning.stop()

    def close(self) -> None:
        """End the workers and give the memory back.  Batches already delivered stay as they are.

        Closing twice is harmless; a closed iterator is at its end.
        """
        self._shutdown_workers()

    def __enter__(self) -> RingIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class DirectIterator(RingIterator):
    """The short way, for map-style datasets in order.

    There the ring alone keeps the order, so torch's reorder buffer and its accounts of who holds what have nothing to
    do.  These three do what theirs would, in the same order.

    A batch may be for ANY worker (schedule="steal").  It has a seed then, from the epoch's: epochs of one iterator
    share its base_seed.  And workers may be further ahead, for they stand idle as soon as all is made that may be made
    before the one that is late: as far as AHEAD_BYTES allow, FURTHER times as far at most.
    """

    def __init__(self, loader: Any) -> None:
        self._stealing = loader.schedule == "steal"
        self._epoch = -1
        super().__init__(loader)

    def _begin(self, loader: Any) -> None:
        """Where work is shared, open it first: the first worker begins while the others are being started."""
        if loader.schedule == "round_robin" and loader.chunk_size is None:
            super()._begin(loader)
        else:
            self._reset(loader, first_iter=True)
            self._hire(loader)

    def _ring_size(self, loader: Any) -> tuple[int, int]:
        batches = self._num_workers * self._prefetch_factor
        return self._batches_ahead(loader, batches, batches), self._furthest

    def _batches_ahead(self, loader: Any, least: int, usual: int) -> int:
        """Decide how many batches may be under way: `least`, and while they are small as many as usual, or more."""
        self._most = self._least = least
        self._furthest = usual * FURTHER if self._stealing else usual
        if loader.max_ring_bytes is not None:  # which is for as many slots as there may be
            self._furthest = least
        return self._furthest

    def _ring_memory(self, loader: Any) -> Any:
        # "auto" asks whether /dev/shm has room for all slots; of those further ahead none may ever be filled
        return "memfd" if self._furthest > self._least and loader.ring_memory == "auto" else loader.ring_memory

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._epoch += 1
        self._seed = mix(int(self._base_seed), self._epoch)
        super()._reset(loader, first_iter)

    def __next__(self) -> Any:
        if profiler._is_profiler_enabled:
            return super().__next__()
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        if self._rcvd_idx == self._send_idx:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        if not self._ring.ready():
            self._await()
        batch = self._delivery.take()
        self._rcvd_idx += 1
        self._try_put_index()
        if type(batch) is _torch.ExceptionWrapper:
            batch.reraise()
        return batch

    def _try_put_index(self) -> None:
        if self._stealing:
            self._put_indices()
            return
        try:
            index = next(self._sampler_iter)
        except StopIteration:
            return
        open_task(self._ring, self._segment, self._send_idx % self._num_workers, index, self._send_idx)
        self._send_idx += 1

    def _put_indices(self) -> None:
        """Open batches for anybody, for as long as not too many are under way."""
        self._look_further()
        while self._ring.under_way < self._most:
            try:
                index = next(self._sampler_iter)
            except StopIteration:
                return
            open_task(self._ring, self._segment, ANY, index, self._send_idx, mix(self._seed, self._send_idx))
            self._send_idx += 1

    def _look_further(self) -> None:
        """Find out how many batches may be under way, after the first, the second, the fourth that came, and so on."""
        came = self._rcvd_idx
        if came and not came & came - 1:
            largest = max(self._ring.committed(payload) for payload in range(self._ring.payloads))
            self._most = min(max(self._least, AHEAD_BYTES // largest), self._furthest)


class _IndexQueue:
    """What torch takes for a worker's index queue: to put a task into it is to open a sequence for that worker."""

    def __init__(self, iterator: RingIterator, worker: int) -> None:
        assert iterator._crew is not None
        self._crew, self._ring, self._segment = iterator._crew, iterator._ring, iterator._segment
        self._tags, self._early = iterator._tags, iterator._early
        self._take = weakref.WeakMethod(iterator._take)  # an iterator that is dropped must go at once
        self._worker = worker

    def put(self, task: Any) -> None:
        if task is None:
            self._crew.dismiss(self._worker)
        elif type(task) is tuple:
            self._open(task[0], task[1])
        else:
            self._open(task, task)

    def _open(self, tag: Any, task: Any) -> None:
        while not self._ring.has_room():  # a ring of chunks may hold fewer batches than there are workers to resume
            take = self._take()
            assert take is not None
            self._early.append(take())
        sequence = self._ring.next_open
        open_task(self._ring, self._segment, self._worker, task, tag if type(tag) is int else -1)
        self._tags[sequence] = tag


class _Done:
    """What torch takes for the event that ends all workers."""

    def __init__(self, ring: TrainerSide) -> None:
        self._ring = ring

    def is_set(self) -> bool:
        return self._ring.stopped
