"""Python's signal handlers, held back where what they raise would leave something half done.

NOTE [ Signals ]

    1. A handler of Python's runs in the main thread, between any two lines, and may raise there: KeyboardInterrupt,
       torch's RuntimeError for a worker that died, whatever a user's handler for SIGTERM raises.  Raised while a worker
       is forked it is lost in a fork hook, or the worker's pid is; raised while an iterator ends, the rest of the end.
    2. So these stretches are `held()`: whatever signal comes is noted, and its handler is called when the stretch is
       over.  Blocking the signal would not do: it is the process's, and where the main thread has blocked it another
       one takes it (numpy alone starts some).  Python runs the handler in the main thread all the same.
    3. Where such a stretch waits, or does what may take long, it says `let_through()`: handlers run there as ever.
    4. Held for longer than LONGEST, something hangs, and a signal that comes then is heard at once.
    5. Other threads run no handlers, and hold nothing back.  A process that is forked meanwhile starts with the
       handlers as they were, and has been told nothing; one that is spawned gets no handlers from anybody.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from shmloader.core.late_signals import late

LONGEST = 5.0  # seconds
_NUMBERS = tuple(map(int, signal.valid_signals()))

Handler = Callable[[int, FrameType | None], Any]


class _Hold:
    """Stands in place of every handler of Python's, from the outermost held() to its end."""

    def __init__(self) -> None:
        self.depth = 0  # of held() in held()
        self.installed = False
        self.open = False  # in let_through()
        self.in_del = False
        self.over = False
        self.since = time.monotonic()
        self.handlers: dict[int, Handler] = {}
        self.noted: set[int] = set()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.over:  # whoever set a handler meanwhile may call the one before it, which is this
            self.handlers[number](number, frame)
        elif self.open or time.monotonic() - self.since > LONGEST:
            self._call(number, frame)
        else:
            self.noted.add(number)

    def _call(self, number: int, frame: FrameType | None) -> None:
        was_open, self.open = self.open, False
        self.since = time.monotonic()
        self.handlers[number](number, frame)
        self.open = was_open  # but not where it raised: what deals with that is held back again

    def install(self) -> None:
        """Take the place of all handlers.  One that is not replaced yet may raise.

        The collector may run in here, and end an iterator, which does the same: then all is done when it is over.
        """
        self.since = time.monotonic()
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if handler is not self and callable(handler):
                self.handlers[number] = handler
                signal.signal(number, self)
        self.installed = True

    def restore(self) -> None:
        """Put the handlers back, but those that others have set meanwhile.  From the first line on they may raise."""
        try:
            self.over = True
            self._put_back()
        finally:
            self._put_back()  # what one has raised must not keep the others out

    def _put_back(self) -> None:
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is self:
                signal.signal(number, handler)

    def call_noted(self) -> None:
        """Call the handlers of what was noted, each whatever the others raise; SIGINT's last, so that it is heard."""
        if self.noted:
            number = max(self.noted)
            self.noted.discard(number)
            try:
                self._call(number, sys._getframe())
            finally:
                self.call_noted()


_hold: _Hold | None = None  # the main thread's


class held:
    """Hold the handlers of signals back: see NOTE [ Signals ].  It may be entered within itself, and in any thread."""

    _hold: _Hold | None = None  # where it counts
    _was_open = False  # it is within a let_through(): the collector may run anywhere

    def __enter__(self) -> held:
        global _hold
        if threading.current_thread() is threading.main_thread():
            hold = _hold or _Hold()  # read once, for the collector may run at any line, and hold and let go as well
            before = hold.depth
            try:
                hold.depth = before + 1  # first: this one must not be over when the collector's is
                _hold = hold  # before a handler is replaced, so that what another thread forks can put it back
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
        if hold is None or hold is not _hold:  # it is a child's, forked meanwhile
            return
        hold.open = self._was_open
        if hold.depth > 1:
            hold.depth -= 1
            return
        _hold = None  # before what may raise, and for the collector, which then holds for itself
        try:
            hold.restore()
        finally:
            self._deliver(hold)

    def _deliver(self, hold: _Hold) -> None:
        hold.call_noted()


class held_in_del(held):
    """The same, in a `__del__()`: what a handler raised there would be printed, and forgotten.

    So a handler is called when the object is gone, or the collection that it dies in is over, and with it what is
    written in Python and called meanwhile, such as the callbacks of weak references; let_through() does nothing before
    that.  The object's attributes are gone then, so that none of them dies behind the handler.

    Args:
        dying: the object whose `__del__()` it is.
    """

    _was_in_del = False

    def __init__(self, dying: Any) -> None:
        self._dying = dying

    def __enter__(self) -> held_in_del:
        super().__enter__()
        if self._hold is not None:
            self._was_in_del, self._hold.in_del = self._hold.in_del, True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._hold is not None:
            self._hold.in_del = self._was_in_del
            if self._hold.noted and self._hold.depth == 1:
                vars(self._dying).clear()  # what is called as these die would be interrupted in vain
        super().__exit__(kind, error, at)

    def _deliver(self, hold: _Hold) -> None:
        if hold.noted:
            self._dying._signals = late(hold.noted)


class let_through:
    """Within held(): call handlers as signals come, first those of what was noted.  What one raises ends it."""

    _hold: _Hold | None = None

    def __enter__(self) -> None:
        if _hold is not None and threading.current_thread() is threading.main_thread():
            self._hold = _hold
            if not _hold.in_del:
                _hold.call_noted()
                _hold.open = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._hold is not None:
            self._hold.open = False
            self._hold.since = time.monotonic()


def _in_child() -> None:
    """A process was forked: it has nothing to hold back, and was not told what its parent was told."""
    global _hold
    hold, _hold = _hold, None
    if hold is not None:
        hold.noted.clear()
        hold.restore()


os.register_at_fork(after_in_child=_in_child)
