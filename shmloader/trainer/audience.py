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
    is_group: bool  # whether these are the ranks of a group, whose generators follow those of this process

    def ring_made(self, ring: TrainerSide, segment: Segment) -> int:
        """A ring was made, and no batch is open yet; returns the ring's number in messages."""

    def began(self, number: int, epoch: Epoch, states: list[bytes]) -> None:
        """The user has called iter(), and this epoch begins.  Then the loader's own generators are in these states."""

    def over(self, number: int, epoch: Epoch, at: int, states: list[bytes], drew_next: bool) -> None:
        """All batches of an epoch are open.  Sequence `at` is the first one after them.

        The loader's own generators are in these states then.  `drew_next` is whether the next epoch is drawn already.
        """

    def failed(self, number: int, error: BaseException, epoch: Epoch | None, at: int) -> None:
        """An error comes in place of sequence `at`; or in place of an epoch, from iter(), if `epoch` is None."""

    def closed(self, number: int, at: int) -> None:
        """The iterator has ended.  It has taken all sequences before `at`."""
