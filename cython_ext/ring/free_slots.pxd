# cython: language_level=3
"""The trainer's accounts of the payload slots: which are free, lent, kept by a worker, held back for a device."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from atomics cimport ring_header, ring_payload
from shmloader.core.ring cimport Mapping, Ring
from shmloader.core.turns cimport Meter

cdef struct lending:                    # of a payload that is the user's
    uint64_t since                      # nanoseconds; 0: it is not
    uint64_t batches                    # taken by then, this one included
    uint64_t logged                     # its first sequence's number in the log


cdef class Slots:
    cdef Mapping mapping
    cdef ring_header *header
    cdef ring_payload *payload
    cdef int payloads
    cdef Py_ssize_t slot_at, slot_stride
    cdef readonly int lent              # payloads that a Lease holds
    cdef int spare                      # how many may be
    cdef uint8_t *is_lent               # which ones
    cdef int *free                      # payloads nobody uses, a stack
    cdef int frees
    cdef ring_payload *words            # who reads each payload, where other processes do; NULL: none does
    cdef uint32_t reader                # the bit of this process where it is one of these; 0: it is the conductor
    cdef bint folded                    # payloads that become free give their pages back
    cdef int reserve                    # the first payload never yet used: replacements for those a worker keeps
    cdef dict keepers                   # of a payload that workers keep: which of them live
    cdef uint8_t *held_back             # those whose guarded leases have died, until reclaim()
    cdef list returned                  # of these, those for which no events are awaited yet, and what was noted
    cdef list reading                   # the others, and the events
    cdef bint reclaiming                # one_at_a_time() has called something
    cdef object current                 # tells a guarded lease that dies which stream is current; None: none is guarded
    cdef tuple devices                  # on which of these devices
    cdef list usual                     # what streams_here() has returned last
    cdef Meter meter
    cdef lending *lending               # for each payload

    cdef bint has_free(self) noexcept                   # whether there is one that nobody reads
    cdef int pick(self) except -1                       # a free one, which a worker is to fill
    cdef bint is_read(self, int payload) noexcept       # whether another process reads it, or is going to
    cdef void lend(self, int payload) noexcept          # it is a lease's now
    cdef void users(self, int payload, uint64_t logged, uint64_t time) noexcept     # the batch is the user's since then
    cdef void no_users(self, int payload) noexcept      # the last tensor over it died
    cdef void give_back(self, int payload) noexcept     # it is no lease's any more
    cdef void let_go(self, int payload) noexcept        # likewise, of one reader of several
    cdef void hold_back(self, int payload) noexcept     # a guarded lease of it has died
    cdef list streams_here(self)                        # what a guarded lease that dies here would note
    cdef int await_them(self, Py_ssize_t count, list events) except -1  # await_events()
    cdef int reclaim_at(self, Py_ssize_t at) except -1          # reclaim(), of this one of awaiting()
    cdef int share(self, Ring ring) except -1           # with other processes; nothing is in use yet
    cdef int retire(self, int payload, set keepers) except -1   # what was lent is kept by these workers
    cdef int died(self, int worker) except -1           # it keeps nothing any more
    cdef void fold_one(self, int payload) noexcept      # one that is free gives its pages back
    cdef void close(self) noexcept                      # all but what is lent goes
    cdef char *slot(self, int payload) noexcept nogil
