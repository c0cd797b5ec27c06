# cython: language_level=3
"""Whose turn it is: the user's, between one next() and another, or ours, in next(); and what each batch was in."""

from libc.stdint cimport uint64_t

from atomics cimport ring_header, ring_payload, ring_worker
from shmloader.core.figures cimport Figures
from shmloader.core.log cimport Log
from shmloader.core.ring cimport Mapping
from shmloader.core.sequences cimport Sequences, ring_given


cdef class Meter:                       # of one loader, whatever iterators it has
    cdef readonly Figures figures
    cdef readonly Log log
    cdef readonly object turns          # of iterators that live: a set of weak references
    cdef object __weakref__


cdef class Turns:
    cdef readonly Meter meter
    cdef Figures figures
    cdef object __weakref__
    cdef Mapping mapping                # whose words are to be written; None: there is no ring
    cdef Turns source                   # of a thread ahead of the user, whose ring counts the user's turns too
    cdef ring_header *header
    cdef ring_worker *worker
    cdef ring_payload *payload
    cdef readonly int workers, payloads
    cdef uint64_t slot_stride
    cdef public object slots            # the ring's Slots; None: there is no ring
    cdef public int kind                # WAIT, or SOURCE_WAIT where a thread is ahead of the user
    cdef uint64_t asked_at              # 0: nobody is in next()
    cdef uint64_t handed_out_at         # the batch before; 0: there was none in this epoch, or it is not known
    cdef uint64_t taken_at              # in this next()
    cdef uint64_t logged                # the number in the log of what was taken last
    cdef uint64_t calls                 # of next() in this epoch, that gave a batch
    cdef uint64_t starting              # nanoseconds in iter() that the first next() of the epoch is to count too
    cdef uint64_t available_at          # when all batches up to the one taken last were READY
    cdef uint64_t *asks                 # when next() was called, of the last calls
    cdef int most_asks
    cdef uint64_t asks_made
    cdef bint in_order
    cdef bint workers_added             # what the workers say is in the loader's figures, and is not read any more

    cdef void ask(self, uint64_t time) noexcept                 # next() was called
    cdef void hand_out(self, uint64_t time) noexcept            # it returns a batch
    cdef void leave(self) noexcept                              # it was left, one way or another
    cdef void new_epoch(self, uint64_t epoch) noexcept
    cdef void opened(self) noexcept                             # a batch was
    cdef void came(self) noexcept                               # one was taken, though it may hold nothing
    cdef void took(self, Sequences sequences, ring_given *given, uint64_t used, int lent) noexcept
    cdef int add_workers(self, Figures to) except -1
    cdef void died(self) noexcept
    cdef void waited_for(self, uint64_t opened, uint64_t claimed, uint64_t fetched, uint64_t published,
                         uint64_t time, int worker) noexcept
    cdef uint64_t ready_when_asked(self, uint64_t available) noexcept
