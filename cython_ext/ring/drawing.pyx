# cython: language_level=3
"""Draws indices of this epoch and of the next from the sampler: how far ahead, and whether again after an exception.
NOTE [ One step ] in next_batch.pyx, 5 and 8.
"""

cimport cython
from libc.stdint cimport uint64_t

from shmloader.core.epoch_counts cimport EpochCounts
from shmloader.core.indices cimport RAISED
from shmloader.core.indices import NOTHING
from shmloader.core.trainer cimport TrainerSide
from shmloader.core.handlers import is_handlers

cdef object nothing = NOTHING


@cython.final
cdef class Drawing:
    """Draws the indices that Steps opens.  Only Steps calls it, and only one thread at a time.

    Args:
        ring: the trainer's side, with the epochs.
        conductor: makes the next epoch known: ConductorSide in trainer/step.py.
    """

    def __cinit__(self, TrainerSide ring, conductor):
        self.ring, self.conductor = ring, conductor

    cdef object draw(self, EpochCounts epoch):
        """The next index of this epoch; NOTHING if its source has no more."""
        cdef object index
        if epoch.source is None:    # a handler raised while the epoch began
            return nothing
        try:
            index = epoch.source.draw(epoch.opened + <uint64_t>len(epoch.waiting) + (epoch.drawn is not nothing))
            if type(index) is list and (self.ring.readers is not None or self.ring.window > 1):
                return index[:]     # it waits, and the sampler may give the same list again, with other indices
            return index
        except Exception:
            if epoch.source.last == RAISED and epoch is self.ring.current and epoch.reading.ready is not nothing:
                self.ring.hand_out()
                epoch.reading.ready = nothing
            raise

    cdef bint takes_no_place(self, EpochCounts epoch) noexcept:
        """Whether another exception of the sampler, which has raised one, would take no batch's place (rule 8).

        So the sampler is not asked.  Otherwise one that raises for ever would keep indices that wait from being opened.
        """
        return (epoch.source is not None and epoch.source.last == RAISED and epoch.reading.ready is nothing
                and (epoch.drawn is not nothing or len(epoch.waiting) > 0 or epoch.is_under_way()))

    cdef int draw_all(self, EpochCounts epoch) except -1:
        """If other processes read, draw as many indices as would be open without them.

        Otherwise the speed of these processes would decide how many are drawn when the user leaves the epoch.  A
        RandomSampler draws from its generator at its end once more.  So the next epoch's order would depend on that.
        """
        cdef TrainerSide ring = self.ring
        if epoch.reading.delivered.of_workers:      # streams have no indices
            return 0
        while self.asked_for() < ring.most and not epoch.refused:
            index = self.draw(epoch)
            if index is nothing:
                if epoch is ring.current and epoch.asks_next and ring.next is None:
                    self.draw_next()
                return 0
            epoch.waiting.append(index)
            self.conductor.drew(epoch)
        return 0

    cdef int asked_for(self) except -1:
        """How many batches are under way, or wait to be opened."""
        cdef TrainerSide ring = self.ring
        cdef EpochCounts later = ring.coming if ring.next is None else ring.next
        cdef int count = ring.under_way + len(ring.current.waiting) + (ring.current.drawn is not nothing)
        return count if later is None else count + len(later.waiting) + (later.drawn is not nothing)

    cdef int draw_next(self) except -1:
        """Draw indices of the next epoch, although batches of the current one may wait to be opened (rule 5)."""
        cdef TrainerSide ring = self.ring
        try:
            if ring.coming is None:
                self.conductor.draw_next()
            if ring.coming is not None and not ring.coming.failed:
                self.draw_all(ring.coming)
        except Exception as error:
            if is_handlers(error):
                raise
            if ring.coming is None:
                ring.current.asks_next = False
            else:
                ring.coming.failed = True
        return 0
