# cython: language_level=3
"""What gives an epoch's indices, and what became of the last draw."""

from libc.stdint cimport uint64_t

NOTHING = object()  # in place of an index that was drawn, or of a batch: there is none
cdef object nothing = NOTHING


cdef class Indices:
    """An iterator over indices, which knows whether it can be asked for more.

    A sampler ends in one of four ways that must not be taken for each other.  Only one of them, StopIteration, means
    that the epoch has no more indices.  It may raise an exception of its own, and torch's loader asks it again after
    that.  A signal's handler may raise while it runs; if it is a generator it is at its end then, though the epoch is
    not, and the indices that are left have to be found again.

    Args:
        indices: the iterator.
    """

    def __init__(self, indices):
        self.indices = indices

    @property
    def is_exhausted(self) -> bool:
        """Whether all indices were drawn."""
        return self.last == EXHAUSTED

    @property
    def is_lost(self) -> bool:
        """Whether the next draw has to find the indices again, because the last one was interrupted."""
        return self.last == LOST

    def replay(self, count) -> None:
        """Have `indices` be an iterator over those behind the first `count`.  The draw behind them was interrupted."""
        raise NotImplementedError

    cdef object draw(self, uint64_t count):
        """The next index, behind `count` that were used; NOTHING where there are no more."""
        if self.last == EXHAUSTED:
            return nothing
        if self.last == LOST:
            self.replay(count)
        self.last = GAVE
        try:
            return next(self.indices)
        except StopIteration:
            self.last = EXHAUSTED
            return nothing
        except Exception:
            self.last = RAISED
            raise
        except BaseException:
            self.last = LOST
            raise
