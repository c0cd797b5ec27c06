"""The thread of one epoch that makes batches ready, and the state that it shares with its caller.

See NOTE [ Prefetcher ] in prefetch.py.
"""

from __future__ import annotations

import collections
import enum
import itertools
import queue
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from shmloader.core.trainer import Progress  # off Linux there is none


class Stage:
    """Processes batches on their way.  This one leaves them as they are."""

    def begin(self) -> None:
        """In the thread, before the first batch."""

    def send(self, batch: Any) -> Any:
        """In the thread: start to process a batch, and do not keep the batch."""
        return batch

    def failed(self) -> bool:
        """In the thread, after an exception: whether the device has failed for good."""
        return False

    def arrive(self, sent: Any) -> Any:
        """In the caller's thread: the batch."""
        return sent


class Kind(enum.Enum):
    BATCH, ERROR, END = range(3)


class Ready(NamedTuple):
    """The next item, in order."""

    kind: Kind
    what: Any = None
    number: int = -1  # its place in the order
    batches: int = 0  # so far, this one included
    delivered: Progress | None = None  # what the source has counted so far; None if it does not count


class Run:
    """One epoch's thread, and the state that it shares with its caller: NOTE [ Prefetcher ].

    Args:
        source: the iterator below.
        stage: processes its batches.
        depth: batches that may be ready and not handed out yet.
        counted: the source's counts; None if it does not count.
        states: returns the present states of its streams; None if it has none.
    """

    def __init__(self, source: Any, stage: Stage, depth: int, counted: Progress | None, states: Any) -> None:
        self._source = source
        self._states = states
        self._counted = counted
        self._stage = stage
        self._depth = depth
        self._ready: queue.SimpleQueue[Ready] = queue.SimpleQueue()
        self._handed_out: queue.SimpleQueue[int] = queue.SimpleQueue()  # numbers
        self._begun = self._stopped = self._inside = self._over = self._closes = False
        self._waiting: list[Any] = []  # for each thread that waits for the end, a lock that the thread releases there
        self.thread = threading.Thread(target=self._live, name="shmloader_ahead", daemon=True)

    # ------------------------------------------------------------------------------------------------ in the thread

    def _live(self) -> None:
        # The thread first marks that it has begun, or is inside the source, and then reads whether it is stopped.
        # stop() does both in the other order.  So at least one of them sees the other's mark.  If stop() finds the
        # thread outside the source, the thread stays outside.
        self._begun = True
        number = batches = 0
        try:
            if self._source._num_workers:
                torch.set_num_threads(1)  # of this thread: a copy must not take all cores
            if not self._stopped:
                self._stage.begin()
            handed_out = 0
            while True:
                while number - handed_out >= self._depth and not self._stopped:
                    handed_out = max(handed_out, self._handed_out.get() + 1)
                try:
                    sent = self._stage.send(self._next())
                    self._ready.put(Ready(Kind.BATCH, sent, number, batches + 1, self._count()))
                    del sent
                    batches += 1
                except StopIteration:
                    break
                except BaseException as error:
                    self._ready.put(Ready(Kind.ERROR, error, number, batches, self._count()))
                    if self._stage.failed():  # after that, allocating memory on the device may end the process
                        break
                number += 1
        except BaseException as error:
            self._ready.put(Ready(Kind.ERROR, error, number, batches))
        finally:
            self._ready.put(Ready(Kind.END))
            self._over = True
            for lock in self._waiting:  # a thread that waits later sees that this one has ended
                lock.release()
            if self._closes:
                close(self._source)

    def _count(self) -> Progress | None:
        return copied(self._counted, self._states)

    def _next(self) -> Any:
        self._inside = True
        try:
            if self._stopped:
                raise StopIteration
            return next(self._source)
        finally:
            self._inside = False

    # ------------------------------------------------------------------------------------------------ in the caller

    def next(self, held: collections.deque[Ready]) -> Ready:
        """Wait for what comes next, and put it into `held`."""
        while not held:
            # All in C: a signal's handler runs while get() waits, or after its result is in `held`.
            held.extend(itertools.islice(iter(self._ready.get, None), 1))
        return held[0]

    def end_for_all(self) -> None:
        """End the iteration for all other threads that are in next(), or come there."""
        self._ready.put(Ready(Kind.END))

    def go_on(self, number: int) -> None:
        """Have the thread make another batch instead of this one."""
        self._handed_out.put(number)

    def stop(self) -> None:
        """Tell the thread to end, and end next() in all callers."""
        self._stopped = True
        self._handed_out.put(-1)
        interrupt = getattr(self._source, "interrupt", None)
        if interrupt is not None and not self._over:
            interrupt()
        self.end_for_all()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the stopped thread has ended; returns whether it has."""
        if not self._begun:
            return True
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)
        if not self._over:
            mine.acquire(timeout=-1 if seconds is None else max(seconds, 0))
        if self._over and not self._closes and self.thread.is_alive():
            self.thread.join()  # it is about to return
        return self._over

    def leave(self) -> bool:
        """Close the source, or leave that to the thread if it is inside; returns whether the source is closed."""
        self._closes = True
        self.stop()  # again, because a Ctrl-C may have come before the thread was woken
        if self._over or not self._inside:
            close(self._source)
            return True
        return False

    def leave_from_inside(self) -> None:
        """leave(), called by the thread itself at any point."""
        self._closes = True
        if self._over:
            close(self._source)


_closing = threading.RLock()


def close(source: Any) -> None:
    end = getattr(source, "_shutdown_workers", None)
    if end is not None:
        with _closing:  # two threads must not end torch's own iterator at once
            end()


def copied(counted: Progress | None, states: Any) -> Progress | None:
    """A copy of the source's counts, with the states of its streams, because the source goes on counting."""
    copy = None if counted is None else counted.copy()
    if copy is not None and states is not None:
        copy.states = states()
    return copy
