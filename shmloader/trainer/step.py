"""What the step from one batch to the next (Steps) calls in Python: these methods, and no more.

The conductor draws indices and opens batches.  A reader takes batches and hands them out.  For each batch the step
calls read() and open().  It calls the others only if there is something else to do.  A signal's handler may interrupt
any of them between two lines, and then the step calls it again: NOTE [ One step ].  The third side is the iterator,
whose `__next__()` is that step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from shmloader.resume.epoch import Epoch


class ConductorSide(Protocol):
    """Opens batches: Conductor in conductor.py."""

    open: Callable[[Epoch, Any], bool]
    """Opens the next batch of an epoch, for which its source gave this index; false while there is no room for it.

    If the ring opens windows, the index is a list: what the source gave for each batch of the next window.  It is an
    attribute, so that Conductor can give its schedule's own: a method that passes the call on would be one more call
    of Python for each batch.
    """


class ReaderSide(Protocol):
    """Takes batches: Delivery in delivery.py."""

    def wait(self) -> None:
        """Wait until the ring has the next batch ready.

        Raises:
            StopIteration: The iterator was closed or interrupted.
        """

    def read(self) -> Any:
        """The batch that the ring lends; NOTHING if its worker's stream has ended instead."""

    def stream_ended(self, worker: int) -> None:
        """A worker has nothing more to give in this epoch.  It may be called more than once."""


class IteratorSide(Protocol):
    """Has the batch, and what Python adds to it before the user gets it: RingIterator in iterator.py."""

    def explain(self, error: RuntimeError) -> NoReturn:
        """Raise an error of the step, or what it means: that a worker has died, or that the iterator was closed."""

    def raise_in_place(self, wrapper: Any) -> NoReturn:
        """Raise the exception that came in a batch's place."""

    def warn_of_length(self) -> None:
        """Warn if a stream gives more than its len()."""

    def at_end(self) -> None:
        """The epoch has no more batches, or the ring was closed: StopIteration follows."""
