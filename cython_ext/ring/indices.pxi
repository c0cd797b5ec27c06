"""The iterator over an epoch's indices: whether the sampler is exhausted, has raised, or was interrupted by a signal.
It asks a sampler again after its own exception, as torch does.
"""


NOTHING = object()  # in place of an index, or of a batch: there is none
cdef object nothing = NOTHING

cdef enum last_draw:    # its result
    GAVE                # an index; or nothing was drawn yet
    LOST                # a signal handler raised during it, which ends a sampler that is a generator
    RAISED              # the sampler raised; it may be asked again
    EXHAUSTED           # there are no more


cdef class Indices:
    """An iterator over indices, which knows whether it can be asked for more.

    A draw has one of four results, which must not be confused.  It may give an index.  StopIteration, and nothing else,
    means that the epoch has no more indices.  The sampler may raise an Exception; torch's loader asks it again after
    that.  A signal's handler may raise KeyboardInterrupt or SystemExit while the sampler runs.  That ends a generator, but not
    the epoch, so the remaining indices have to be found again.

    Args:
        indices: the iterator.
    """
    cdef public object indices          # the iterator over those that are left
    cdef last_draw last

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
        """Set `indices` to an iterator over those after the first `count`, because the next draw was interrupted."""
        raise NotImplementedError

    cdef object draw(self, uint64_t count):
        """The next index, after `count` that were used; NOTHING if there are no more."""
        cdef object before = self.indices
        if self.last == EXHAUSTED:
            return nothing
        if self.last == LOST:
            try:
                self.replay(count)
            finally:
                if self.indices is not before:  # a signal that was held back meanwhile must not have it replayed again
                    self.last = GAVE
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
