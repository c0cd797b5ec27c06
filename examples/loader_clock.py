"""The cost of a loader for the trainer: the time it waits, and the CPU it spends to get its batches."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Batch = TypeVar("Batch")


class LoaderClock:
    """Passes a loader's batches on and adds up the time of `iter(loader)` and of each `next(iterator)`.

    `waiting` is wall-clock seconds.  `cpu` is seconds of CPU that this process spends during those calls, all of its
    threads together.  The workers are other processes and do not count.  A helper thread of the loader (such as torch's
    pinning thread) counts only while the trainer waits, and not while it works beside the training step.  Nor does the
    freeing of a batch, which happens when the training step drops it.
    """

    def __init__(self) -> None:
        self.waiting = 0.0
        self.cpu = 0.0

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        with self._running():
            iterator = iter(loader)
        while True:
            with self._running():
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def _running(self) -> Generator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.waiting += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu
