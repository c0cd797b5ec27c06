"""Decides which reads begin before they are needed: as many as fit into a bound in bytes (`prefetch_bytes`).
Drops reads of samples that the loader has skipped.

NOTE [ Read ahead ]

A loader announces the samples that it will take, and their reads wait in a queue.  The next read begins as soon as
there is room for it: its bytes plus those of all reads that were begun and not yet taken must fit into the bound.
Taking a sample makes room.

A loader takes samples in the order in which it announced them, unless the user leaves the epoch half-way.  So when a
sample is taken and an earlier one was not, nobody will take the earlier one, and its read is dropped.  A dataset whose
own threads load the samples of a batch takes them slightly out of order.  So only reads that are more than `_SLACK`
samples earlier are dropped.

Each process has its own (OfThisProcess), because the threads that read for its parent are not in it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["ReadAhead"]

_SLACK = 64

Begin = Callable[[], Any]


class ReadAhead:
    """Reads under way and finished ones, each until it is taken.

    Args:
        most: The bound in bytes, for reads that were begun and not taken.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self.bytes = 0
        self._announced = 0
        self._known: dict[Any, int] = {}  # for each key that was announced and not taken, the number of its read
        self._line: deque[tuple[Any, int, int, Begin]] = deque()
        self._begun: OrderedDict[Any, tuple[int, int, Any]] = OrderedDict()

    def announce(self, reads: Iterable[tuple[Any, int, Begin]]) -> None:
        """Begin reads as far as there is room.  The others begin when there is room for them.

        Args:
            reads: For each read a key, its bytes, and a function that begins it.  The function returns the object that
                take() will return; it has a cancel().
        """
        with self._lock:
            for key, size, begin in reads:
                if key not in self._known:
                    self._announced += 1
                    self._known[key] = self._announced
                    self._line.append((key, self._announced, size, begin))
            self._begin()

    def take(self, key: Any) -> Any:
        """The read that was begun for a key; None if there is none.  A key is taken once."""
        with self._lock:
            at = self._known.pop(key, None)
            if at is None:
                return None
            found = self._begun.pop(key, None)
            if found is not None:
                self.bytes -= found[1]
            self._drop_before(at - _SLACK)
            self._begin()
            return None if found is None else found[2]

    def _begin(self) -> None:
        while self._line:
            key, at, size, begin = self._line[0]
            if self._known.get(key) == at:  # it was not taken meanwhile
                if self.bytes and self.bytes + size > self.most:
                    return
                try:
                    self._begun[key] = at, size, begin()
                    self.bytes += size
                except Exception:  # __getitem__ reads the sample again, and raises the error
                    del self._known[key]
            self._line.popleft()

    def _drop_before(self, at: int) -> None:
        while self._begun:
            key, (when, size, read) = next(iter(self._begun.items()))
            if when >= at:
                break
            del self._begun[key], self._known[key]
            self.bytes -= size
            read.cancel()
        while self._line and self._line[0][1] < at:
            key, when, _, _ = self._line.popleft()
            if self._known.get(key) == when:
                del self._known[key]
