# cython: language_level=3
"""Draws indices from the sampler, and decides whether it is asked again after an exception.
NOTE [ One step ] in next_batch.pyx, 7.
"""

cimport cython
from libc.stdint cimport uint64_t

from shmloader.core.epoch_counts cimport EpochCounts
from shmloader.core.indices cimport RAISED
from shmloader.core.indices import NOTHING
from shmloader.core.trainer cimport TrainerSide

cdef object nothing = NOTHING


@cython.final
cdef class Drawing:
    """Draws the indices that Steps opens.  Only Steps calls it, and only one thread at a time.

    Args:
        ring: the trainer's side, with the epoch.
    """

    def __cinit__(self, TrainerSide ring):
        self.ring = ring

    cdef object draw(self, EpochCounts epoch):
        """The next index of this epoch; NOTHING if its source has no more."""
        cdef object index
        if epoch.source is None:    # a handler raised while the epoch began
            return nothing
        try:
            index = epoch.source.draw(epoch.opened + <uint64_t>len(epoch.waiting) + (epoch.drawn is not nothing))
            if type(index) is list and self.ring.window > 1:
                return index[:]     # it waits, and the sampler may give the same list again, with other indices
            return index
        except Exception:
            if epoch.source.last == RAISED and epoch.reading.ready is not nothing:
                self.ring.hand_out()
                epoch.reading.ready = nothing
            raise

    cdef bint takes_no_place(self, EpochCounts epoch) noexcept:
        """Whether another exception of the sampler, which has raised one, would take no batch's place (rule 7).

        So the sampler is not asked.  Otherwise one that raises for ever would keep indices that wait from being opened.
        """
        return (epoch.source is not None and epoch.source.last == RAISED and epoch.reading.ready is nothing
                and (epoch.drawn is not nothing or len(epoch.waiting) > 0 or epoch.is_under_way()))
