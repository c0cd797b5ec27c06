"""A few daemon threads that read files and shards, or make samples; the interpreter's exit waits for none."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any

from shmloader.system.cleanup import in_del

__all__ = ["Threads"]


class Threads:
    """A few threads that call functions.  They end with this object, and the interpreter's exit waits for none.

    Args:
        count: How many there are at most.  Each starts when it is first needed.
    """

    def __init__(self, count: int) -> None:
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._most = count
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        """Call a function in one of them, after those that were submitted before."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._waiting.put((future, function))
        if len(self._threads) < self._most:
            thread = threading.Thread(target=_work, args=(self._waiting,), name="shmloader storage", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    @in_del
    def __del__(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)


def _work(waiting: queue.SimpleQueue[Any]) -> None:
    while (work := waiting.get()) is not None:
        future, function = work
        del work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        del future, function  # a thread that waits must not keep their objects alive
