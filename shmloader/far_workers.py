"""The interface of an engine that starts far workers on other machines.  Ray is one engine behind it.
A loader shows local and far workers together as its `num_workers`.

The engine finds places for far workers, starts them, and starts them again when they die.  It gives each one a ticket
and the loader's arguments.  All else (the order, the seeds, the bytes of batches) is between the loader and the far
worker: NOTE [ Far workers ] in far/stand_in.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ticket:
    """What a far worker needs in order to connect to its stand-in.  The engine carries it to the far worker."""

    host: str
    port: int
    number: int  # which worker of the ring it is
    workers: int  # how many workers the ring has
    secret: bytes = field(repr=False)  # both ends prove that they have it, before either parses a byte of the other


class FarSession(ABC):
    """Far workers at work for one iterator."""

    @abstractmethod
    def wait(self) -> None:
        """Wait a limited time for far workers that are being started, and warn if some are missing after that."""

    @abstractmethod
    def place(self, far: int) -> str:
        """Where the far-th far worker runs, and how it is, as far as the engine knows; for error messages."""

    @abstractmethod
    def close(self) -> None:
        """The iterator has ended.  Called again, it does nothing."""


class FarWorkers(ABC):
    """Workers on other machines.  A DataLoader gets them as `far_workers`.

    Attributes:
        num: How many there are.
        heartbeat: How many seconds a far worker that makes a batch may give no sign of life.
        in_flight: How many batches a far worker is asked for at once.
    """

    num: int
    heartbeat: float
    in_flight: int = 2

    @abstractmethod
    def address(self) -> str:
        """The address of this machine to which far workers connect.

        Raises:
            RuntimeError: The engine does not run.
        """

    @abstractmethod
    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        """Put far workers to work for an iterator, and return at once.

        Args:
            tickets: One for each.
            arguments: Of the loader's workers: the dataset, the collate function and so on.
        """


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
