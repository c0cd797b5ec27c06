"""A lock that each process has for itself."""

from __future__ import annotations

import os
import threading

__all__ = ["OwnLock"]


class OwnLock:
    """A reentrant lock for the threads of a process.  A process that is forked from it has another one.

    A lock that a thread holds during a fork stays locked in the child for ever, because that thread is not there.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}  # by process

    @property
    def here(self) -> threading.RLock:
        """This process's lock.  A thread that takes it must release the same one, so take it by a `with`."""
        me = os.getpid()
        return self._locks.get(me) or self._locks.setdefault(me, threading.RLock())  # of two threads, one sets it
