"""Counts local and far workers together, because a loader shows that count as `num_workers`."""

from __future__ import annotations

from typing import Any


class WorkerCount(int):
    """The number of all workers of a loader, which remembers how many of them are local.

    Frameworks rebuild a loader from its attributes.  With a plain int, the rebuilt loader would count the far workers
    twice.
    """

    local: int

    def __new__(cls, local: int, far: int) -> WorkerCount:
        count = super().__new__(cls, local + far)
        count.local = local
        return count

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerCount, (self.local, int(self) - self.local)


def with_far(num_workers: Any, far_workers: Any) -> Any:
    """How many workers a loader has in all, if it has far ones."""
    if isinstance(num_workers, WorkerCount):
        num_workers = num_workers.local
    if far_workers is None or not isinstance(num_workers, int) or num_workers < 0:  # torch refuses what is no number
        return num_workers
    return WorkerCount(num_workers, far_workers.num)


def local_workers(loader: Any) -> int:
    """How many workers of a loader run on this machine."""
    count = loader.num_workers
    return count.local if isinstance(count, WorkerCount) else int(count)
