"""An iterator: one epoch after another, from the sampler's indices to the batches that next() returns.

torch's multi-process iterator works with queues; this one works with the ring's verbs.  A schedule opens batches for
workers (schedule.py), the ring keeps their order, and Delivery makes batches of what the workers publish.  The order of
draws from the generators, the seeds, the errors and their texts are torch's, for people rely on that contract.

torch's iterator class is inherited from for its name alone, because others ask whether an iterator is one of that
class.

NOTE [ Shutdown ]

    1. An iterator ends once: when its epoch does (unless its workers persist), when it is closed, or when it is
       collected, whichever comes first.  At interpreter exit little is done (at_exit.py): multiprocessing terminates
       the workers, which are daemons, and the kernel frees memory that has no name.
    2. The order: `stop` is raised, and every worker's bell is tolled.  The watching thread is ended.  All workers are
       joined, with one deadline for all, then terminated, then killed.  Only then is the memory given back, for a
       worker that is still filling a slot must not fault.  If one lives even then, because the kernel does not let go
       of it, the memory stays until the last process that maps it is gone.
    3. A worker whose trainer is gone ends, whatever it is doing (parents_death.py); a spawned one also while it imports
       the trainer's script.
    4. A forked child that drops its copy of an iterator must end nobody.  Its pid tells that it is a child.
    5. Batches that are still lent live on; see NOTE [ Lease ].
    6. Threads that call the device (ahead.py, pinning.py) are the exception to 1.  An atexit hook ends them, for a
       thread that comes back from a call into an interpreter that is gone takes the process down with it.
    7. No signal interrupts the end.  Handlers are called when it is over, with one exception: while workers have time
       to leave, Ctrl-C cuts that short (NOTE [ Signals ]).  If anything else breaks the end off, the iterator has not
       ended: each step is taken whatever became of the others, no step does harm when it is taken twice, and the next
       call takes them all.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from torch.utils.data import DataLoader, IterableDataset

from shmloader import _torch
from shmloader._torch import profiler
from shmloader.batch import objects
from shmloader.core.next_batch import END, Steps
from shmloader.core.progress import Progress
from shmloader.core.trainer import TrainerSide
from shmloader.device.accelerator import accelerator_of
from shmloader.device.pinning import IN_TRANSIT, Pinning
from shmloader.options import Options
from shmloader.resume.drawn_from import watch_of
from shmloader.resume.epochs import listen, told
from shmloader.resume.loader_generators import restore
from shmloader.resume.place import place_of
from shmloader.ring.segment import Segment
from shmloader.statistics.account import account_of, label_of, wants_detail
from shmloader.system.cores import may_spin
from shmloader.system.signals import held, held_in_del
from shmloader.trainer import early
from shmloader.trainer.at_exit import raise_at_exit
from shmloader.trainer.bad_samples import epoch_seed, tally_of
from shmloader.trainer.begin import begin_iterator, left_of_streams, seed_of_samples, seed_of_workers
from shmloader.trainer.crew import Crew
from shmloader.trainer.delivery import Delivery
from shmloader.trainer.indices import Draws
from shmloader.trainer.next_epoch import Overlapping
from shmloader.trainer.pool import given_pool
from shmloader.trainer.schedule import schedule_of
from shmloader.trainer.templates import context_of


class RingIterator(Overlapping, _torch._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Iterates over the batches of a DataLoader, through a ring of its own.

    It can be closed, and used as a context manager.  An iterator that is dropped closes itself.
    """

    _crew: Crew | None = None
    _shutdown = True
    _ended = True  # nothing of it is left
    _pinning: Pinning | None = None
    _interrupted = False
    copies_to_pin = False  # batches are copied into page-locked memory, which a thread that is ahead should do

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        raise_at_exit()  # first: there may soon be no built-in functions any more
        base_seed, self._served = begin_iterator(loader, lambda: _torch.begin_iterator(self, loader))
        if base_seed is not None:
            self._base_seed = base_seed
        self._seed_of_workers = seed_of_workers(loader, self._base_seed)
        self._left = left_of_streams(loader)
        self.loader = weakref.ref(loader)
        self._prefetch_factor: int = loader.prefetch_factor  # type: ignore[assignment]
        self._in_order = loader.in_order
        if self._num_workers <= 0:
            raise AssertionError("num_workers must be greater than 0 for MultiProcessingDataLoaderIter")
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._worker_init_fn = loader.worker_init_fn
        self._streams = isinstance(self._dataset, IterableDataset)
        self._profile_name = f"enumerate(DataLoader)#{_torch._MultiProcessingDataLoaderIter.__name__}.__next__"
        self._owner = os.getpid()
        self._ending = threading.RLock()  # two threads may close one iterator
        self._ended = False
        try:
            with held():
                self._make_ring(loader, options)
            if self._schedule.opens_first:
                self._reset(loader, first_iter=True)
                self._hire(loader)
            else:  # torch's order, which a sampler may rely on
                self._hire(loader)
                self._reset(loader, first_iter=True)
        except BaseException:
            self._shutdown_workers()
            raise

    def _make_ring(self, loader: Any, options: Options) -> None:
        """Make the ring and everything around it.  Nobody works on it yet."""
        self._spin = may_spin(self._num_workers + 1)  # else a side that pauses on its core keeps another from it
        self._prefetches = options.prefetch_epochs and loader.persistent_workers
        self._schedule = schedule_of(loader, options, self._dismiss_weakly())
        size, spare, memory = self._schedule.size, options.spare_slots, self._schedule.size.memory
        device = accelerator_of(loader, options)
        if device is not None and spare:
            spare += IN_TRANSIT
        if device is not None and memory == "auto":
            memory = "memfd"  # at once, for a slot that is page-locked may not move there
        self._segment = Segment(
            self._num_workers,
            size.entries,
            size.batches,
            spare,
            memory,
            options.max_ring_bytes,
            remember=options.respawns and not self._schedule.seeds_samples,  # else no state goes from batch to batch
            streams=self._streams,
            detail=wants_detail(options),
        )
        segment = self._segment
        self._account = account_of(loader)
        self._account.add_sheet(segment.sheet)
        self._ring = TrainerSide(segment, self._spin, spare, self._in_order, objects.dump_whole, self._account.meter)
        self._turns = self._ring.turns
        segment.format(self._ring, label_of(loader))
        self._steps = Steps(self._ring, size.at_first, _torch.ExceptionWrapper)
        self._tally = tally_of(loader, options)
        self._schedule.attach(self._ring, self._steps)
        if device is None:
            self._delivery = Delivery(self._ring, spare, self._streams, tally=self._tally)
        else:
            self._pinning = Pinning(self._ring, device, options.strict_pinning, private=options.device is not None)
            self._delivery = Delivery(self._ring, spare, self._streams, self._pinning, device.clone, self._tally)
        # what next_batch.pyx calls
        self._read, self._open = self._delivery.take, self._schedule.open
        self._worker_ended = self._schedule.ended
        self._crew = Crew(
            context_of(loader, options),
            self._ring,
            segment,
            respawn=options.respawns,
            reissue=not self._streams,
            timeout=self._timeout,
            outlives=options.workers_outlive_signals,
        )
        self._workers = self._crew.workers
        self._shutdown = False

    def _dismiss_weakly(self) -> Any:
        """A function that lets a worker leave.  It does not keep this iterator, which must go at once when dropped."""
        mine = weakref.ref(self)

        def dismiss(worker: int) -> None:
            iterator = mine()
            if iterator is not None and iterator._crew is not None:
                iterator._crew.dismiss(worker)

        return dismiss

    def _states_weakly(self) -> Any:
        """A function that reads what the streams say of themselves.  It does not keep this iterator either."""
        mine, workers = weakref.ref(self), self._num_workers

        def states() -> list[bytes | None]:
            iterator = mine()
            return [b""] * workers if iterator is None else iterator._ring.states()

        return states

    def _hire(self, loader: Any) -> None:
        """Start the workers, and the thread that page-locks."""
        assert self._crew is not None
        self._crew.start(
            self._num_workers,
            self._spin,
            {
                "dataset": self._dataset,
                "auto_collation": self._auto_collation,
                "collate_fn": self._collate_fn,
                "drop_last": self._drop_last,
                "base_seed": self._seed_of_workers,
                "init_fn": self._worker_init_fn,
                "num_workers": self._num_workers,
                "seeds_samples": self._schedule.seeds_samples,
                "stride": self._schedule.stride,
                "told": told(self._dataset),
                "left": self._left,
                "pool": None if self._tally is None else given_pool(loader),
            },
        )
        if self._pinning is not None:
            self.copies_to_pin = not self._pinning.start()
            if self._pinning.thread is not None:
                self._pin_memory_thread = self._pinning.thread
        self._worker_pids_set = True

    # ------------------------------------------------------------------------------------------------ an epoch

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin an epoch, or what is left of one: as in torch, ask the sampler for an iterator, and for indices."""
        self._interrupted = False
        if early.is_asked_for(loader, self) or self._turn_over(loader):
            return
        self._keep_states()
        self._steps.drain(self)  # of an epoch that was left half-way
        carried = self._ring.states() if self._streams else []  # NOTE [ Streams from epoch to epoch ]
        place = place_of(loader)
        start = place.starting(loader)
        if not first_iter:
            self._served += 1
            if start is not None:  # workers that persist seed each sample here; else they are others (dataloader.py)
                restore(loader, start)
            if start is not None and start.base_seed is not None:
                self._base_seed, self._served = start.base_seed, start.served
        start = start if start is not None and start.begun else None
        watch = watch_of(self._index_sampler) if place.is_early else None
        self._draws = Draws(self._index_sampler, loader.generator, start, watch=watch)
        self._sampler_iter = self._draws.indices
        self._num_yielded = 0
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        delivered = Progress(not self._in_order and not self._streams, self._num_workers if self._streams else 0)
        listen(self._dataset)  # whose loader may be of a class that has an __init__ of its own
        self.epoch = place.epoch_of(loader, self._base_seed, self._served, delivered)
        self.epoch.carried = carried
        self._ring.begin_epoch(delivered, self._auto_collation, told(self._dataset), epoch_seed(self.epoch))
        if self._tally is not None:
            self._tally.begin()
        self.epoch.drawn = self._draws
        self._draws.draw_for(self.epoch)
        if self._streams:
            self.epoch.states = self._states_weakly()
        self._schedule.begin(seed_of_samples(loader, self.epoch), self.epoch.start.latest)
        self._steps.begin(self, self._sampler_iter, self._prefetches)
        place.began(self.epoch)

    def _draw_again(self, count: int) -> Any:
        self._sampler_iter = self._draws.again(count)
        return self._sampler_iter

    def __next__(self) -> Any:
        if profiler._is_profiler_enabled:
            with profiler.record_function(self._profile_name):
                return self._next_data()
        return self._next_data()

    def _next_data(self) -> Any:
        try:
            batch = self._steps.next(self)
        except RuntimeError as error:  # torch's SIGCHLD handler may run at any line of Python in there
            self.explain(error)
        if batch is END:
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        if type(batch) is _torch.ExceptionWrapper:
            batch.reraise()
        self._num_yielded += 1
        if self._streams:
            _torch.warn_of_length(self)
        return batch

    def _await(self) -> None:
        """Wait for the next sequence in order, or for any.  Look after workers that die or hang meanwhile."""
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
                self._crew.raise_or_kill(self._ring.sequences.awaited())

    # torch's own accounts, which others read, from what the ring knows.

    @property
    def _send_idx(self) -> int:
        """Batches opened in this epoch."""
        return self._ring.opened

    @property
    def _rcvd_idx(self) -> int:
        """Batches of these that were taken."""
        return self._num_yielded if self._ahead is not None else self._ring.opened - self._ring.under_way

    @property
    def _tasks_outstanding(self) -> int:
        return self._ring.under_way

    @property
    def _workers_status(self) -> list[bool]:
        """Which workers have something left to give."""
        return getattr(self._schedule, "active", [True] * self._num_workers)

    def interrupt(self) -> None:
        """Until it is reset, give StopIteration at once to the thread that is in next() or comes there."""
        self._interrupted = True
        self._ring.alarm()

    def explain(self, error: RuntimeError) -> NoReturn:
        """Raise torch's error for a worker that died, with what it held; any other error as it is."""
        assert self._crew is not None
        self._crew.raise_explained(error)

    # --------------------------------------------------------------------------------------------- the end

    def _shutdown_workers(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """See NOTE [ Shutdown ]."""
        # First, because a __del__ of the user's may call this when the names of this module are None.
        if is_finalizing() or self._ended or _torch.is_exiting() or self._owner != os.getpid():
            return
        if self._is_ours(threading.current_thread()):
            # The collector runs in this thread, in the middle of whatever the thread does with the ring.
            threading.Thread(target=self._shutdown_workers, name="shmloader_end").start()
            return
        with held(), self._ending:
            if self._ended:
                return
            self._shutdown = True
            self._ahead = None
            try:
                if self._crew is not None:
                    self._ring.alarm()  # ends the wait of another thread
                    self._crew.stop()
            finally:
                self._worker_pids_set = False
                self._give_back()
                self._ended = self._crew is None or self._crew.ended

    def _is_ours(self, thread: threading.Thread) -> bool:
        """Whether this is one of the iterator's own threads, for which the end waits."""
        pins = self._pinning is not None and self._pinning.thread is thread
        return pins or (self._crew is not None and self._crew.is_watching(thread))

    def _give_back(self) -> None:
        """Give everything back, but no memory that a worker may still be using."""
        try:
            if self._crew is not None and self._crew.lives:
                self.stop_threads()
            else:
                if self._pinning is not None:
                    self._pinning.close()
                if hasattr(self, "_segment"):
                    self._account.end_sheet(self._segment.sheet)
                if hasattr(self, "_ring"):  # else there was no memory for it
                    self._keep_states()
                    self._ring.close()
        finally:
            if hasattr(self, "_segment"):
                self._segment.close()

    def _keep_states(self) -> None:
        """Keep what streams say of themselves in mid-epoch, before the ring's memory goes or they go on."""
        delivered = self._ring.delivered
        if self._streams and not delivered.over and delivered.states is None:
            with contextlib.suppress(RuntimeError):  # it is closed already
                delivered.states = self._ring.states()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        try:  # first, for a signal may come behind any call
            if not is_finalizing() and not self._ended:  # else the names of this module, and of others, may be None
                with held_in_del(self):
                    self._shutdown_workers()
        finally:  # a signal may have come before signals were held back
            if not is_finalizing():
                self._shutdown_workers()

    def stop_threads(self) -> None:
        """End the threads that call the device, and nothing else."""
        if self._pinning is not None and self._owner == os.getpid():
            self._pinning.stop()

    def close(self) -> None:
        """End the workers and give the memory back.  Delivered batches stay as they are.

        Closing twice is harmless.  A closed iterator is at its end.
        """
        self._shutdown_workers()

    def __enter__(self) -> RingIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
