"""What a thread runs, where a signal's handler may break off the start of the thread, or the wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ThreadTarget"]


class ThreadTarget:
    """The target of a thread: a call that is prevented, or begun and awaited.

    A handler may raise at any line of Thread.start(), and then Thread.ident does not tell whether the thread was
    started.  Thread.join() may be used only after wait(): where it is broken off, CPython before 3.13 takes the thread
    for ended.

    It has locks only, because a wait for one is one call of C.  A signal's handler that raises in the Python code of an
    Event would leave the Event's own lock locked, and the thread would wait for that for ever.

    Args:
        call: What to run.  It gets the thread's arguments.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        self._first = threading.Lock()  # taken by the one that comes first: the thread, or prevent()
        self._lives = threading.Lock()  # until the call has ended
        self._lives.acquire()

    def __call__(self, *arguments: Any) -> None:
        if self._first.acquire(blocking=False):
            try:
                self._call(*arguments)
            finally:
                self._lives.release()

    def prevent(self) -> bool:
        """Keep the call from beginning; False if it has begun."""
        return self._first.acquire(blocking=False)

    def wait(self, patience: float = -1) -> bool:
        """Wait until the call has ended, which must have begun, or begin; returns whether it has.

        Args:
            patience: For how many seconds at most; -1: without an end.
        """
        if patience < 0:
            with self._lives:
                return True
        ended = self._lives.acquire(timeout=patience)
        if ended:
            self._lives.release()
        return ended
