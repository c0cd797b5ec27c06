"""An iterator: one epoch after another, from the sampler's indices to the batches that next() returns.
It decides which memory its ring gets, how many slots for lent batches, and the order of the shutdown.

torch's multi-process iterator works with queues; this one works with the ring's verbs.  The Conductor begins epochs, a
schedule opens their batches for workers, the ring keeps their order, Delivery makes batches of what the workers
publish, and Steps goes from one batch to the next (step.py).  The order of draws from the generators, the seeds, the
errors and their texts are torch's, because people rely on that contract.

RingIterator inherits from torch's iterator class only because other libraries test for that class by isinstance().

NOTE [ Shutdown ]

    1. An iterator ends once: when its epoch does (unless its workers persist), when it is closed, or when it is
       collected, whichever comes first.  If the user breaks out of the loop, nobody keeps it, so it is collected at
       once.  If its workers persist, the loader keeps it, and the next iter() drains what is left (_begin()).  At
       interpreter exit little is done (at_exit.py): multiprocessing terminates the workers, which are daemons, and the
       kernel frees memory that has no name.
    2. The iterator sets the flag `stop` and tolls every worker's bell, which wakes the worker even if its sleeper bit
       is not set (ring_toll).  Then it ends the watching thread.  It joins all workers, with one deadline for all, then
       terminates and then kills those that are left.  Only then does it give the memory back, because a worker that is
       still filling a slot must not fault.  If the kernel cannot end a killed worker, the memory stays until the last
       process that maps it is gone.
    3. When the trainer is gone, each worker ends, whatever it is doing (parents_death.py); a spawned worker ends even
       while it imports the trainer's script.
    4. A forked child that drops its copy of an iterator must not end any worker.  Its pid shows that it is a child.
    5. Batches that are still lent live on; see NOTE [ Lease ] in delivery.py.
    6. At interpreter exit, an atexit hook ends the threads that call the device (prefetch.py, pinning.py).  Otherwise
       such a thread might come back from its call when the interpreter is already gone, and the process would crash.
    7. Signal handlers run after the shutdown, so none of them interrupts it.  There is one exception: Ctrl-C shortens
       the time that workers have to leave (NOTE [ Signals ]).  A step that raises does not stop the steps after it.  If
       the shutdown is interrupted nevertheless, the next call takes all steps again, because taking a step twice is
       harmless.
    8. The collector may run in any thread, at any line, and end an iterator there.  If it is a thread that the
       steps join, it cannot take them itself, and the iterator starts another thread for them.
    9. Two threads may end an iterator, so the steps have a lock.  There is another lock, `changing`.  A thread holds it
       while it starts workers.  Each thread must take `changing` before the lock of the steps.  So the end of an
       iterator begins with part(), which takes `changing`, and no step after it waits for it.  With the other order,
       two threads could wait for each other: thread A holds `changing` while a signal's handler in A ends an iterator
       and waits for the lock of the steps, and thread B holds that lock and waits for `changing`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import DataLoader, IterableDataset

from shmloader.batch import objects
from shmloader.batch.exceptions import raise_again
from shmloader.core.batch_reader import BatchReader
from shmloader.core.ring import RingClosed
from shmloader.core.trainer import Steps, TrainerSide, next_batch
from shmloader.options import Options
from shmloader.private import of_torch
from shmloader.private.of_torch import profiler
from shmloader.resume.dataset_epochs import Numbers, dataset_epoch
from shmloader.resume.place import Place, place_of
from shmloader.ring.growth import ring_memory
from shmloader.ring.segment import Segment
from shmloader.statistics.account import account_of, label_of, wants_detail
from shmloader.system.cleanup import OwnIterator
from shmloader.system.cores import may_spin
from shmloader.system.signals import held
from shmloader.trainer.at_exit import raise_at_exit
from shmloader.trainer.bad_samples import Tally
from shmloader.trainer.conductor import Conductor
from shmloader.trainer.delivery import Delivery
from shmloader.trainer.empty_epoch import warn_if_all_dropped
from shmloader.trainer.sample_pool import given_pool
from shmloader.trainer.schedule import schedule_of
from shmloader.trainer.seeds import begin_iterator, left_of_streams, seed_of_workers
from shmloader.trainer.workers_of import workers_of

if TYPE_CHECKING:
    from shmloader.device.accelerator import Accelerator
    from shmloader.device.pinning import Pinning


class LoaderClosed(RuntimeError):
    """Another thread or a signal's handler has closed the loader while iter() ran."""

    def __init__(self) -> None:
        super().__init__(
            "The loader was closed while iter() ran, by another thread or a signal's handler. Iterate over it again."
        )


class RingIterator(OwnIterator, of_torch._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """Iterates over the batches of a DataLoader, through a ring of its own.

    It can be closed, and used as a context manager.  An iterator that is dropped closes itself.
    """

    _ended = True  # there are no workers, threads and memory
    _pinning: Pinning | None = None
    copies_to_pin = False  # batches are copied into page-locked memory, so a prefetch thread should take them
    stays = False  # slots may not move, because other processes map them: readers/taken.py

    @of_torch.initialised_once
    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        raise_at_exit()  # first, because the built-in functions may soon be gone
        place = place_of(loader)
        base_seed, epochs_before = begin_iterator(place, lambda: of_torch.begin_iterator(self, loader))
        if base_seed is not None:
            self._base_seed = base_seed
        self._streams = isinstance(self._dataset, IterableDataset)
        start = {
            "base_seed": seed_of_workers(place, self._base_seed),
            "left": left_of_streams(place),
            "watches_states": self._streams and place.current is None,
        }
        self.loader = weakref.ref(loader)
        self._prefetch_factor: int = loader.prefetch_factor  # type: ignore[assignment]
        self._in_order = loader.in_order
        if self._num_workers <= 0:
            raise AssertionError("num_workers must be greater than 0 for MultiProcessingDataLoaderIter")
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
        self._worker_init_fn = loader.worker_init_fn
        self._profile_name = f"enumerate(DataLoader)#{of_torch._MultiProcessingDataLoaderIter.__name__}.__next__"
        self._owner = os.getpid()
        self._ending = threading.RLock()  # two threads may close one iterator
        try:
            with held():
                self._make_ring(loader, options, place, epochs_before)
            with self._unless_closed():  # a handler may close the loader as soon as that has this iterator
                if self._schedule.opens_first:
                    self._reset(loader, first_iter=True)
                    self._hire(loader, options, start)
                else:  # torch's order, which a sampler may rely on
                    self._hire(loader, options, start)
                    self._reset(loader, first_iter=True)
        except BaseException:
            self._shutdown_workers()
            raise

    def _make_ring(self, loader: Any, options: Options, place: Place, epochs_before: int) -> None:
        """Make the ring and everything around it.  Nobody works on it yet.  If this raises, nothing of it is left."""
        self._spin = may_spin(self._num_workers + 1)  # with too few cores, a side that spins would keep another waiting
        self._schedule = schedule_of(loader, options)
        size, spare, memory = self._schedule.size, options.spare_slots, ring_memory()
        device = _accelerator_of(loader, options)
        if device is not None:
            from shmloader.device.pinning import IN_TRANSIT, Pinning

            spare += IN_TRANSIT if spare else 0
        stays = self.stays or device is not None  # a slot that is page-locked, or that others map, may not move
        memory = "memfd" if memory == "auto" and (stays or size.leaves_shm) else memory
        segment = self._segment = Segment(
            self._num_workers,
            size.entries,
            size.batches,
            spare,
            memory,
            options.max_ring_bytes,
            # with seeds for each sample, a worker that replaces another one needs no random states
            remember=options.respawns and not self._schedule.seeds_samples,
            streams=self._streams,
            detail=wants_detail(),
            stays=stays,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(segment.close)
            self._account = account_of(loader)
            self._account.add_sheet(segment.sheet)
            undo.callback(self._account.end_sheet, segment.sheet)
            ring = TrainerSide(segment, self._spin, spare, self._in_order, objects.dump_whole, self._account.meter)
            undo.callback(ring.close)
            self._ring, self._turns = ring, ring.turns
            segment.format(ring, label_of(loader))
            self._schedule.attach(ring)
            self._tally = Tally(loader, options) if options.skips_bad_samples else None
            self._worker_set = workers_of(loader, options, self, ring, segment)
            self._workers = self._worker_set.workers
            dismisses = self._streams and not loader.persistent_workers
            delivers = ring, self._worker_set, spare, self._timeout, self._streams, dismisses
            if device is None:
                self._delivery = Delivery(*delivers, reader=self._batch_reader(), tally=self._tally)
            else:
                private = options.device is not None  # nobody but the thread that copies gets tensors over a slot
                self._pinning = Pinning(ring, device, private)
                reader = BatchReader(of_torch.ExceptionWrapper, device.clone, device.room, keeps=not private)
                self._delivery = Delivery(*delivers, self._pinning, reader, self._tally)
            self._conductor = Conductor(place, self, ring, self._schedule, self._tally, epochs_before)
            self._steps = Steps(ring, self._conductor, self._delivery, of_torch.ExceptionWrapper, profiler)
            undo.pop_all()
        self._shutdown = self._ended = False

    def _batch_reader(self) -> Any:
        """What reads batches from their slots; None: a BatchReader."""
        return None

    def _hire(self, loader: Any, options: Options, start: dict[str, Any]) -> None:
        """Start the workers, and the thread that page-locks.  `start` has what the loaded state decides for them."""
        self._worker_set.start(
            self._num_workers,
            self._spin,
            {
                **start,
                "dataset": self._dataset,
                "auto_collation": self._auto_collation,
                "collate_fn": self._collate_fn,
                "drop_last": self._drop_last,
                "init_fn": self._worker_init_fn,
                "num_workers": int(self._num_workers),  # for get_worker_info(): a WorkerCount is ours
                "seeds_samples": self._schedule.seeds_samples,
                "stride": self._schedule.stride,
                "numbers": Numbers(self._dataset),
                "dataset_epoch": dataset_epoch(self._dataset) if self._streams else None,
                "epoch_seed": self._conductor.seed,
                "look_ahead": options.look_ahead,
                "pool": None if self._tally is None else given_pool(loader),
            },
        )
        if self._pinning is not None:
            from shmloader.device.prefetch import stop_at_exit

            stop_at_exit(self)
            self.copies_to_pin = not self._pinning.start()
            if self._pinning.thread is not None:
                self._pin_memory_thread = self._pinning.thread
        self._worker_pids_set = True

    # ------------------------------------------------------------------------------------------------ an epoch

    @property
    def epoch(self) -> Any:
        """The epoch whose batches next() gives."""
        return self._ring.current

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Begin an epoch, or what is left of one, and open its first batches.

        Raises:
            RuntimeError: A signal's handler has called iter() while this thread was in it, or has closed the loader.
        """
        with self._unless_closed():
            self._steps.exclusively(self._begin, loader, first_iter)

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """In this `with`, whatever fails because other code has closed the iterator is an error that names that."""
        try:
            yield
        except LoaderClosed:
            raise
        except Exception as error:
            if not self._delivery.closed:
                raise
            # A StopIteration as its cause would come out in its place: contextlib takes the RuntimeError for Python's.
            raise LoaderClosed from (None if isinstance(error, StopIteration) else error)
        if self._delivery.closed:
            raise LoaderClosed

    def _begin(self, loader: DataLoader[Any], first_iter: bool) -> None:
        self._delivery.interrupted = False
        self._ring.slots.wake()
        self._keep_states()
        self._steps.drain()  # of an epoch that was left half-way
        self._conductor.begin(first_iter)
        self._show(loader)
        self._steps.begin()
        self._conductor.begun()

    def _show(self, loader: Any) -> None:
        """Set torch's attributes for the epoch that begins, because other libraries read them."""
        self._base_seed = self._conductor.base_seed
        self._sampler_iter = self.epoch.source.indices
        self._num_yielded = 0
        self._IterableDataset_len_called = loader._IterableDataset_len_called

    __next__ = _next_data = next_batch  # it calls the three methods below: IteratorSide in step.py

    raise_in_place = staticmethod(raise_again)

    def at_end(self) -> None:
        """The epoch has no more batches, or the ring was closed: StopIteration follows."""
        warn_if_all_dropped(self.loader(), self.epoch)
        if self._persistent_workers:
            self._ring.slots.rest()
        else:
            self._shutdown_workers()

    def warn_of_length(self) -> None:
        """Warn, as torch does, if a stream gives more than its len()."""
        of_torch.warn_of_length(self)

    # torch's own counters, which other libraries read.  Here the ring counts.

    @property
    def _send_idx(self) -> int:
        """Batches opened in this epoch."""
        return self._ring.current.opened

    @property
    def _rcvd_idx(self) -> int:
        """Batches taken in this epoch."""
        return self._ring.current.reading.taken

    @property
    def _tasks_outstanding(self) -> int:
        return self._ring.under_way

    @property
    def _workers_status(self) -> list[bool]:
        """For each worker, whether it has more batches to give in this epoch."""
        return [not ended for ended in self._ring.current.reading.delivered.ended] or [True] * self._num_workers

    def interrupt(self) -> None:
        """End the epoch for every thread that is in next() or calls it; the next _reset() undoes that."""
        self._delivery.interrupted = True
        self._ring.alarm()

    def explain(self, error: RuntimeError) -> NoReturn:
        """Raise torch's error for a worker that died, with what it held; any other error as it is.

        If next() failed because other code has closed the iterator meanwhile, this raises StopIteration.
        """
        if self._delivery.closed and isinstance(error, RingClosed):
            raise StopIteration from error
        self._worker_set.raise_explained(error)

    # --------------------------------------------------------------------------------------------- the end

    def _shutdown_workers(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """See NOTE [ Shutdown ]."""
        # First, because a __del__ of the user's may call this when the names of this module are None.
        if is_finalizing() or self._ended or of_torch.is_exiting() or self._owner != os.getpid():
            return
        if self._ends_elsewhere():
            threading.Thread(target=self._shutdown_workers, name="shmloader_end").start()
            return
        with held():
            self._shutdown = True
            try:
                self._delivery.closed = True
                self._worker_set.part()  # before the lock: NOTE [ Shutdown ], 9
            finally:
                self._take_steps()

    def _take_steps(self) -> None:
        """Take all steps of the shutdown but the first one."""
        with self._ending:
            if self._ended:
                return
            try:
                self._ring.alarm()  # ends the wait of another thread
                self._worker_set.stop()
            finally:
                self._worker_pids_set = False
                self._give_back()
                self._ended = self._worker_set.ended

    def _ends_elsewhere(self) -> bool:
        """Whether another thread must take the steps of the shutdown: NOTE [ Shutdown ], 8."""
        here = threading.current_thread()
        pins = self._pinning is not None and self._pinning.thread is here
        return pins or self._worker_set.cannot_stop_in(here)

    def _give_back(self) -> None:
        """Free threads and memory, except memory that a worker may still use."""
        try:
            if self._worker_set.are_left:
                self.stop_threads()
            else:
                if self._pinning is not None:
                    self._pinning.close()
                self._account.end_sheet(self._segment.sheet)
                self._keep_states()
                self._ring.close()
        finally:
            self._segment.close()

    def _keep_states(self) -> None:
        """Read the states of streams in mid-epoch, before the ring's memory is freed or the streams continue."""
        reading = self._ring.current.reading
        delivered = reading.delivered
        if self._streams and not reading.ended and delivered.states is None:
            with contextlib.suppress(RuntimeError):  # it is closed already
                delivered.states = self._ring.states()

    def stop_threads(self) -> None:
        """End the threads that call the device, and nothing else."""
        if self._pinning is not None and self._owner == os.getpid():
            self._pinning.stop()


def _accelerator_of(loader: Any, options: Options) -> Accelerator | None:
    """The accelerator for which the slots are page-locked; None: none.  Without one, its modules are not imported."""
    if options.device is None and not loader.pin_memory:
        return None
    from shmloader.device.accelerator import accelerator_of

    return accelerator_of(loader, options)
