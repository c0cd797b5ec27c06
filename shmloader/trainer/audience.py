"""What an iterator calls if other processes read its batches too: NOTE [ Readers ] in readers.pxd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shmloader.core.trainer import TrainerSide
from shmloader.ring.segment import Segment

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch


class Drawn(NamedTuple):
    """What the first rank of a group has drawn; the other ranks follow."""

    states: list[bytes]  # of the loader's own generators
    early: int = 0  # how many epochs were drawn early (prefetch_epochs), also those that were dropped
    is_early: bool = False  # whether the epoch that begins is one of these
    next: dict[str, Any] | None = None  # the next epoch, if it is drawn early: message_of()


class Audience(Protocol):
    """The processes that read: Host in readers/host.py.  The thread that iterates calls all of it."""

    spares: int  # how many batches all of them together may lend
    reads: bool  # whether the iterator's own process reads too
    is_group: bool  # whether these are the ranks of a group, whose generators follow those of this process

    def ring_made(self, ring: TrainerSide, segment: Segment) -> int:
        """A ring was made, and no batch is open yet; returns the ring's number in messages."""

    def began(self, number: int, epoch: Epoch, drawn: Drawn) -> None:
        """The user has called iter(), and this epoch begins.  What iter() draws is drawn."""

    def over(self, number: int, epoch: Epoch, at: int, drawn: Drawn, final: bool) -> None:
        """All batches of an epoch are open.  Sequence `at` is the first one after them.

        Unless `final`, more may be drawn before the end of the epoch, and then this is called again.
        """

    def failed(self, number: int, error: BaseException, epoch: Epoch | None, at: int) -> None:
        """An error comes in place of sequence `at`; or in place of an epoch, from iter(), if `epoch` is None."""

    def closed(self, number: int, at: int) -> None:
        """The iterator has ended.  It has taken all sequences before `at`."""
