"""Holds back Python's signal handlers in the trainer while an exception from them would leave something half done.

Has workers survive signals to their whole process group, too (`workers_outlive_signals`).

NOTE [ Signals ]

    1. A Python handler runs in the main thread, between any two lines, and may raise there: KeyboardInterrupt, torch's
       RuntimeError for a worker that died, or anything from a user's handler for SIGTERM.  If it raises while a worker
       is forked, the error is lost in a fork hook, or the worker's pid is lost; if it raises while an iterator ends,
       the rest of the end is lost.
    2. So the code that forks a worker or ends an iterator runs inside `with held():`.  A signal that arrives in such a
       stretch of code is noted, and its handler is called after the stretch.  Blocking the signal is not enough.  A
       signal belongs to the process, and if the main thread has blocked it, another thread takes it (numpy alone starts
       some).  Python then runs the handler in the main thread anyway.
    3. Where such a stretch waits, or may take long, it uses `let_through()`: handlers run there as usual.  Inside
       let_through(), a second stretch may begin.  Signals that come in the second one are handled at its end, and not
       only at the end of the first one.
    4. If a stretch lasts longer than LONGEST, we assume that it hangs. A signal that arrives after that is handled at
       once.
    5. In a `__del__()`, Python would print and drop what a handler raises.  So there, noted signals are delivered again
       when the `__del__()` has ended, and let_through() does nothing (late_signals.pxi).
    6. Other threads run no handlers, and hold nothing back.  A process that is forked in a stretch starts with the
       former handlers, and gets none of the noted signals.  A spawned process inherits no handlers.

NOTE [ Group signals ]

    1. A scheduler that needs its machine back sends SIGTERM to each process of a job (torchrun, Slurm, Kubernetes).  A
       terminal sends SIGINT (Ctrl-C) or SIGHUP to each process of the group.  The trainer may catch the signal, take
       some more batches and save.  It cannot if its workers have died of the same signal.
    2. So a worker drops these three, by a handler in C (process.pyx).  The kernel restarts system calls after it.  Two
       cases are not dropped.  A SIGTERM from the trainer ends the worker at once, because multiprocessing ends its
       daemons like that at exit.  And a signal that a worker sends itself acts as in torch.
    3. A worker does not ignore them (SIG_IGN), because an ignored signal stays ignored after exec.  So a program that
       the dataset starts could not be ended.  And at exit multiprocessing would wait for ever for a daemon that ignores
       its SIGTERM.
    4. This holds from the first moment: the thread that starts a worker blocks the three, fork and exec pass the block
       on, and the worker unblocks them when its handler is in place.  It does not hold under forkserver, because the
       server would pass the block on to every process that it forks.  A signal to the group may then end a worker that
       is still importing torch; and it ends the server, so the next worker takes as long to start as the first.
    5. A handler that `worker_init_fn` or the dataset sets in a worker replaces this one.
       `workers_outlive_signals=False` leaves all of it to torch.
    6. Of two pending SIGTERMs the kernel keeps only the first, with its sender.  A worker may have the scheduler's
       SIGTERM pending, because it is stopped, waits for a disk or just starts.  Then the trainer's SIGTERM is lost, and
       multiprocessing would wait for the worker for ever.  So at exit the worker gets a signal of another number first,
       which the pending SIGTERM does not replace (watch.py).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType, TracebackType
from typing import Any

from shmloader.core.process import deliver_after_del, is_in_del

LONGEST = 5.0  # seconds
_NUMBERS = tuple(map(int, signal.valid_signals()))

Handler = Callable[[int, FrameType | None], Any]


class _Hold:
    """Replaces every Python handler, from the outermost held() to its end."""

    def __init__(self) -> None:
        self.depth = 0  # of nested held()
        self.installed = False
        self.open = False  # in let_through()
        self.over = False
        self.since = time.monotonic()
        self.handlers: dict[int, Handler] = {}
        self.noted: set[int] = set()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.over:  # a handler that was set meanwhile may call its predecessor, which is this object
            self.handlers[number](number, frame)
        elif self.open or time.monotonic() - self.since > LONGEST:
            self._call(number, frame)
        else:
            self.noted.add(number)

    def _call(self, number: int, frame: FrameType | None) -> None:
        was_open, self.open = self.open, False
        self.since = time.monotonic()
        self.handlers[number](number, frame)
        self.open = was_open  # but not if it raised, because the handling of that must be held back again

    def install(self) -> None:
        """Replace all handlers.  A handler that is not replaced yet may still raise.

        The collector may run in here and end an iterator, which calls this too: then all is done when that returns.
        """
        self.since = time.monotonic()
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if handler is not self and callable(handler):
                self.handlers[number] = handler
                signal.signal(number, self)
        self.installed = True

    def restore(self) -> None:
        """Restore the handlers that nobody else has set meanwhile.  Handlers may raise as soon as this begins."""
        try:
            self.over = True
            self._put_back()
        finally:
            self._put_back()  # the error of one handler must not keep the others out

    def _put_back(self) -> None:
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)

    def call_noted(self, called: frozenset[int] = frozenset()) -> None:
        """Call the handlers of the noted signals, each whatever the others raise; SIGINT's last, so that it counts.

        Each is called once.  A timer's handler that takes as long as its interval is noted again meanwhile, and would
        be called for ever.

        Args:
            called: Those that were called.
        """
        if left := self.noted - called:
            number = max(left)
            self.noted.discard(number)
            try:
                self._call(number, sys._getframe())
            finally:
                self.call_noted(called | {number})


_hold: _Hold | None = None  # the main thread's


class held:
    """Hold back the handlers of signals: see NOTE [ Signals ].  It may be nested, and used in any thread."""

    _hold: _Hold | None = None  # in the main thread
    _was_open = False  # inside a let_through(), because the collector may run anywhere

    def __enter__(self) -> held:
        global _hold
        if threading.current_thread() is threading.main_thread():
            hold = _hold or _Hold()  # read once: the collector may run at any line, and may call held() itself
            before = hold.depth
            try:
                hold.depth = before + 1  # first, so that the end of the collector's held() does not end this one
                _hold = hold  # before a handler is replaced, so that a process forked by another thread can restore it
                if not hold.installed:
                    hold.install()
            except BaseException:
                hold.depth = before
                if not before:
                    _hold = None
                    hold.restore()
                raise
            self._hold, self._was_open, hold.open = hold, hold.open, False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        global _hold
        hold = self._hold
        if hold is None or hold is not _hold:  # this is a child that was forked meanwhile
            return
        hold.open = self._was_open
        if hold.depth > 1:
            hold.depth -= 1
            if hold.open:  # within let_through(), which may wait long
                self._deliver(hold)
            return
        _hold = None  # before anything that may raise, and so that the collector makes its own
        try:
            hold.restore()
        finally:
            self._deliver(hold)

    def _deliver(self, hold: _Hold) -> None:
        if is_in_del():
            deliver_after_del(hold.noted)
            hold.noted = set()
        else:
            hold.call_noted()


class let_through:
    """Within held(): call handlers as signals come, first those of noted signals.  If one raises, this ends."""

    _hold: _Hold | None = None

    def __enter__(self) -> None:
        if _hold is not None and threading.current_thread() is threading.main_thread():
            self._hold = _hold
            if not is_in_del():
                _hold.call_noted()
                _hold.open = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._hold is not None:
            self._hold.open = False
            self._hold.since = time.monotonic()


def _in_child() -> None:
    """In a forked process: hold nothing back, and forget the parent's noted signals."""
    global _hold
    hold, _hold = _hold, None
    if hold is not None:
        hold.noted.clear()
        hold.restore()


os.register_at_fork(after_in_child=_in_child)


GROUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@contextmanager
def blocked_at_start(context: Any) -> Iterator[None]:
    """Block the three in this thread, and so in a process that it starts.

    Args:
        context: Starts the process.
    """
    method = getattr(context, "get_start_method", str)()
    if method not in ("fork", "spawn"):  # a fork server would keep them blocked for every process that it starts
        yield
        return
    if method == "spawn":
        # multiprocessing starts this process before the first one that it spawns, and then unblocks SIGINT and SIGTERM
        # unconditionally: the first worker would start without a block.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP)
    _before[threading.get_ident()] = before
    try:
        yield
    finally:
        del _before[threading.get_ident()]
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_before: dict[int, set[int]] = {}  # the signals that each thread that starts a worker had blocked before


@contextmanager
def unblocked() -> Iterator[None]:
    """Within blocked_at_start(): block only what was blocked before it.  Pending signals are delivered now."""
    before = _before.get(threading.get_ident())
    if before is None:
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
