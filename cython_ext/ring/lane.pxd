# cython: language_level=3
"""What one worker reports about itself: NOTE [ Figures ] in atomics.h."""

from libc.stdint cimport uint32_t, uint64_t

from atomics cimport ring_entry, ring_header, ring_worker


cdef class Lane:
    cdef ring_worker *worker
    cdef ring_header *header
    cdef ring_entry *entry              # of the sequence that is claimed
    cdef uint64_t claimed_at, fetched_at, published_at
    cdef uint32_t epoch                 # of what was claimed last
    cdef int aside                      # how many sequences are claimed and put aside
    cdef bint slept                     # since the last sequence was published
    cdef uint64_t waited                # by the trainer, when this worker went to sleep
    cdef uint64_t cpu, delay            # at the last probe
    cdef uint64_t probed_at, worked     # when that was; nanoseconds that batches have taken since

    cdef uint64_t waited_by(self, uint64_t time) noexcept nogil     # how long the trainer has waited for batches
    cdef void sleeps(self) noexcept nogil                           # there is nothing to claim
    cdef void claimed(self, ring_entry *entry) noexcept
    cdef void fetched(self) noexcept                                # the samples of the claimed sequence are there
    cdef void published(self, bint filled) noexcept                 # it is about to be published, with a batch or not
    cdef void put_aside(self) noexcept                              # another sequence will be claimed first
    cdef void taken_up(self, ring_entry *entry) noexcept            # a sequence that was put aside
    cdef void probe(self, uint64_t time) noexcept
