"""An iterator with a prefetch thread, which makes a few batches ready before they are asked for.
It decides how long close() and the interpreter's exit wait for that thread.

NOTE [ Prefetcher ]

    1. The thread takes batches from the iterator below (the source), in order.  It passes each batch to a stage
       (prefetch_thread.py), such as the copy to the device, and puts the result into a queue, with a number.  If
       something raises, the error goes into the queue at that place, and is raised in the caller.  The caller reports
       the number of each batch that it hands out, through a second queue.  So the thread knows how many batches are
       ready, and makes no more than `depth`, whatever their size.  Whoever waits at one of the queues sleeps in the
       kernel, without polling.
    2. The thread has a reference to the source, the stage and the queues, but none to the iterator.  So an iterator
       that is dropped is collected, and the thread ends with it.  A thread lives for one epoch, and shares a Run with
       its caller.
    3. To end the thread, we set a flag that the thread reads before each batch.  If the thread waits for the caller, we
       wake it.  If it waits for a batch, we interrupt the source.  If it is in the user's code (`on_device`, a sampler,
       the dataset of a loader without workers), we cannot interrupt it.
    4. So a new epoch waits until the old thread has ended, however long that takes (torch's loader waits for its
       workers in the same way).  The source is never reset while a thread uses it.  The wait takes no CPU, and Ctrl-C
       ends the wait.  After that Ctrl-C the iterator has ended, but the thread still runs, and the next epoch waits for
       the thread.
    5. close() waits for PATIENCE, as torch does for its workers, or until Ctrl-C.  If the thread is still in
       `on_device` after that, close() closes the source at once.  That is safe, because the thread sees the flag when
       it comes out of `on_device`, and does not use the source again.  If the thread is still in the source, the thread
       closes the source when it comes out.  Both cases give a RuntimeWarning.  The interpreter's exit waits for all
       threads together, at most for PATIENCE.  It may leave a thread behind, because the threads are daemons.
    6. Ctrl-C may come between any two lines of the caller.  So each thread that calls next() holds its batch from the
       moment when the batch leaves the queue until next() returns it.  It does no harm if a batch's number is reported
       twice, or if the iterator or the thread is ended twice.  threading's is_alive() proves nothing: until Python
       3.12, an interrupted join() marks a living thread as ended.
    7. Without a thread (depth 0), `on_device` runs in the caller.  If it is interrupted there by Ctrl-C, the
       KeyboardInterrupt takes the place of the batch, like any exception of `on_device`.
    8. If code asks for an attribute of torch's iterator that this iterator lacks (`_workers` for example), it gets the
       source's attribute.
"""

from __future__ import annotations

import atexit
import collections
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmloader.device.prefetch_thread import Kind, Ready, Run, Stage, close, copied
from shmloader.private import of_torch
from shmloader.private.of_torch import profiler
from shmloader.statistics.account import turns_of_prefetcher
from shmloader.system.cleanup import OwnIterator

if TYPE_CHECKING:
    from shmloader.core.trainer import Progress  # off Linux there is none

PATIENCE = 5.0  # seconds that closing, and the interpreter's exit, wait for a thread, which may be in a user's function


class _Hand(threading.local):
    """A batch that has left the queue or the source, and that next() has not returned yet.  Each thread has its own."""

    def __init__(self) -> None:
        self.came: collections.deque[Any] = collections.deque()  # without a thread: a batch that was not sent yet
        self.held: collections.deque[Ready] = collections.deque()  # one at most


class Prefetcher(OwnIterator):
    """Iterates over a source's batches, and makes `depth` of them ready in advance; see NOTE [ Prefetcher ].

    Args:
        loader: The loader whose iterator this is.
        source: The iterator below.
        stage: Processes its batches.
        depth: How many batches may be ready and not handed out yet.  0: there is no thread, and none is made in
            advance.
    """

    _run: Run | None = None
    _ended = True

    @of_torch.initialised_once
    def __init__(self, loader: Any, source: Any, stage: Stage, depth: int) -> None:
        self.loader = weakref.ref(loader)
        self._source = source
        self._stage = stage
        self._depth = depth
        self._owner = os.getpid()
        self._shutdown = False
        self._persistent_workers = loader.persistent_workers
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        self._turns = turns_of_prefetcher(loader, source)
        _alive.add(self)
        self._start()

    def __getattr__(self, name: str) -> Any:
        if name == "_source":  # it is missing before __init__, and in a copy that is being made
            raise AttributeError(name)
        return getattr(self._source, name)

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._source)

    # ------------------------------------------------------------------------------------------------- an epoch

    def _start(self) -> None:
        self._num_yielded = 0
        self._hand = _Hand()
        self._epoch: Any = getattr(self._source, "epoch", None)  # torch's own iterator with workers has none
        self._counted: Progress | None = None if self._epoch is None else self._epoch.reading.delivered
        self._states: Any = None if self._epoch is None else self._epoch.states
        self._hand_on(copied(self._counted, self._states))
        if self._depth:
            self._run = Run(self._source, self._stage, self._depth, self._counted, self._states)
            self._pin_memory_thread = self._run.thread
            self._run.thread.start()
        self._ended = False

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.end_thread(None)
        self._source._reset(loader, first_iter)
        self._start()

    def __next__(self) -> Any:
        hand = self._hand
        if self._turns is not None:
            self._turns.asked()
        if profiler._is_profiler_enabled:
            with profiler.record_function(self._profile_name):
                batch, delivered = self._arrived(hand)
        else:
            batch, delivered = self._arrived(hand)
        if self._turns is not None:
            self._turns.handed_out()
        # Signals are handled at calls and loops.  There is none from here to the caller's own code, so the batch is
        # neither lost nor returned twice, and counts exactly if it is returned.
        if delivered is None:
            del hand.held[0]
            return batch
        self._epoch.delivered = delivered
        del hand.held[0]
        return batch

    def _arrived(self, hand: _Hand) -> tuple[Any, Progress | None]:
        """The batch, and what the user will have received of the epoch with it."""
        if self._ended:
            raise StopIteration
        ready = self._next_of_thread(hand) if self._depth else self._next_here(hand)
        try:
            batch = self._stage.arrive(ready.what)
        except Exception:
            self._hand_on(ready.delivered)
            hand.held.clear()
            raise
        self._num_yielded = ready.batches
        return batch, ready.delivered

    def _hand_on(self, delivered: Progress | None) -> None:
        """Record what the user has received of the epoch."""
        if delivered is not None:
            self._epoch.delivered = delivered

    def _end(self) -> None:
        """End the epoch for the user, although the source may be in the middle of it."""
        if self._epoch is not None and self._epoch.reading.ended:
            self._hand_on(self._counted)

    def _next_of_thread(self, hand: _Hand) -> Ready:
        run = self._run
        if run is None:
            raise StopIteration
        try:
            ready = run.next(hand.held)
        except RuntimeError as error:  # torch's SIGCHLD handler may raise in there
            explain = getattr(self._source, "explain", None)
            if explain is not None:
                explain(error)
            raise
        if ready.kind is Kind.END:
            run.end_for_all()
            if not self._ended:
                self._end()
            if not self._ended and not self._persistent_workers:
                self._shutdown_workers()
            self._ended = True
            raise StopIteration
        run.go_on(ready.number)
        if ready.kind is Kind.ERROR:
            try:
                self._hand_on(ready.delivered)
                del hand.held[0]
                raise ready.what
            finally:
                del ready  # its traceback holds this frame
        return ready

    def _next_here(self, hand: _Hand) -> Ready:
        """The next batch, without a thread."""
        while not hand.held:
            if not hand.came:
                try:
                    hand.came.extend(map(next, (self._source,)))
                except Exception:  # it counts as a batch, because it comes in place of one
                    self._hand_on(copied(self._counted, self._states))
                    raise
            if not hand.came:
                self._end()
                raise StopIteration
            count = copied(self._counted, self._states)
            batches = self._num_yielded + 1
            # in one line, because an interrupt before another line would lose the batch
            hand.held.append(Ready(Kind.BATCH, self._stage.send(hand.came.popleft()), 0, batches, count))
        return hand.held[0]

    # ------------------------------------------------------------------------------------------------- the end

    def stop(self) -> None:
        """Put the iterator at its end, and tell its thread to end."""
        self._ended = True
        if self._run is not None and self._owner == os.getpid():
            self._run.stop()

    def end_thread(self, seconds: float | None) -> bool:
        """End the thread and drop what is ready.

        Args:
            seconds: How long to wait for the thread; None: for ever.

        Returns:
            Whether the thread has ended.
        """
        self.stop()
        run = self._run
        if run is None or self._owner != os.getpid():
            return True
        if not run.wait(seconds):
            return False
        self._run = None
        return True

    def _shutdown_workers(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """See NOTE [ Prefetcher ], and NOTE [ Shutdown ] in iterator.py."""
        # First, because a __del__ of the user's may call this when the names of this module are None.
        if is_finalizing() or self._shutdown or of_torch.is_exiting() or self._owner != os.getpid():
            return
        run, ended = self._run, False
        if run is not None and threading.current_thread() is run.thread:  # the collector runs in it
            self.stop()
            run.leave_from_inside()
            self._shutdown = True
            return
        try:
            ended = self.end_thread(PATIENCE)
        finally:  # a Ctrl-C ends the wait, but not the closing
            closed = True
            if run is None or ended:
                close(self._source)
            else:
                closed = run.leave()
            self._shutdown = True
        if not ended:
            late = f"the thread that makes batches ready has not ended in {PATIENCE:g} s: it is still "
            warnings.warn(late + (_IN_STAGE if closed else _IN_SOURCE), RuntimeWarning, stacklevel=3)


_IN_STAGE = "in on_device, or copying. It ends after that. The workers have ended, and their memory is free."
_IN_SOURCE = (
    "in the dataset, the sampler or the collate function, or waits for a batch of torch's own iterator. After that it "
    "ends the workers and frees their memory."
)


class PrefetcherWithWorkers(Prefetcher, of_torch._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """For frameworks that recognise an iterator with workers by its class."""


class PrefetcherWithoutWorkers(Prefetcher, of_torch._SingleProcessDataLoaderIter):  # type: ignore[misc]
    """For frameworks that recognise an iterator without workers by its class."""


def prefetcher(loader: Any, source: Any, stage: Stage, depth: int) -> Prefetcher:
    """An iterator with a prefetch thread, of the class that matches its source."""
    return (PrefetcherWithWorkers if loader.num_workers else PrefetcherWithoutWorkers)(loader, source, stage, depth)


_alive: weakref.WeakSet[Any] = weakref.WeakSet()


def stop_at_exit(iterator: Any) -> None:
    """Call an iterator's stop_threads() before the interpreter exits: NOTE [ Shutdown ], 6."""
    _alive.add(iterator)


@atexit.register
def _stop_all() -> None:
    """End all threads.  Wait for them for PATIENCE at most, because they may be in a user's function."""
    iterators = list(_alive)
    prefetchers = [iterator for iterator in iterators if isinstance(iterator, Prefetcher)]
    for iterator in prefetchers:
        iterator.stop()
    end = time.monotonic() + PATIENCE
    for iterator in prefetchers:
        iterator.end_thread(end - time.monotonic())
    for iterator in iterators:
        if not isinstance(iterator, Prefetcher):
            iterator.stop_threads()
