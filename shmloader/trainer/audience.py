"""What an iterator calls if other processes read its batches too: NOTE [ Readers ] in readers.pxd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shmloader.core.trainer import TrainerSide
from shmloader.ring.segment import Segment

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch


class Audience(Protocol):
    """The processes that read: Host in readers/host.py.  The thread that iterates calls all of it."""

    spares: int  # how many batches all of them together may lend
    reads: bool  # whether the iterator's own process reads too

    def ring_made(self, ring: TrainerSide, segment: Segment) -> int:
        """A ring was made, and nothing is opened yet; returns a number for it."""

    def began(self, number: int, epoch: Epoch) -> None:
        """An epoch begins: the user has asked for it."""

    def over(self, number: int, epoch: Epoch, at: int) -> None:
        """The last batch of an epoch is open: what comes behind it is sequence `at`."""

    def failed(self, number: int, error: BaseException, epoch: Epoch | None, at: int) -> None:
        """In place of sequence `at` of an epoch there is an error; None: iter() has raised it."""

    def closed(self, number: int, at: int) -> None:
        """The iterator has ended; what is opened before sequence `at` was taken."""
