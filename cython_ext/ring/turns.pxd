# cython: language_level=3
"""Measures the time inside next(), the time between calls, and the stages of each batch."""

from libc.stdint cimport uint64_t

from atomics cimport ring_header, ring_payload, ring_worker
from shmloader.core.figures cimport Figures, Log


cdef class Meter:                       # of one loader, whatever iterators it has
    cdef readonly Figures figures
    cdef readonly Log log
    cdef readonly object turns          # of living iterators: a set of weak references
    cdef object __weakref__


cdef class Turns:
    cdef readonly Meter meter
    cdef Figures figures
    cdef object __weakref__
    cdef Mapping mapping                # of the words to write; None: there is no ring
    cdef Turns source                   # that of the prefetch thread, whose ring counts the user's turns too
    cdef ring_header *header
    cdef ring_worker *worker
    cdef ring_payload *payload
    cdef readonly int workers, payloads
    cdef uint64_t slot_most
    cdef public object slots            # the ring's Slots; None: there is no ring
    cdef public int kind                # WAIT, or SOURCE_WAIT if a prefetch thread calls next()
    cdef uint64_t asked_at              # 0: no thread is in next()
    cdef uint64_t handed_out_at         # the batch before; 0: there was none in this epoch, or the time is not known
    cdef uint64_t taken_at              # in this next()
    cdef uint64_t logged                # the number in the log of what was taken last
    cdef uint64_t calls                 # of next() in this epoch, that gave a batch
    cdef uint64_t starting              # nanoseconds in iter(), which count as part of the epoch's first next()
    cdef uint64_t available_at          # when all batches up to the one taken last were READY
    cdef uint64_t *asks                 # when next() was called, of the last calls
    cdef int most_asks
    cdef uint64_t asks_made
    cdef bint in_order
    cdef bint workers_added             # the workers' figures were added to the loader's, and are not read again

    cdef void ask(self, uint64_t time) noexcept                 # next() was called
    cdef void hand_out(self, uint64_t time) noexcept            # it returns a batch
    cdef void leave(self) noexcept                              # it returned or raised
    cdef void new_epoch(self, uint64_t epoch) noexcept
    cdef void opened(self) noexcept                             # a batch was opened
    cdef void came(self) noexcept                               # a batch was taken, which may hold nothing
    cdef void took(self, Sequences sequences, ring_given *given, uint64_t used, int lent) noexcept
    cdef int add_workers(self, Figures to) except -1
    cdef void died(self) noexcept
    cdef void waited_for(self, uint64_t opened, uint64_t claimed, uint64_t fetched, uint64_t published,
                         uint64_t time, int worker) noexcept
    cdef uint64_t ready_when_asked(self, uint64_t available) noexcept
