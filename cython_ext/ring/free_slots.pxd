# cython: language_level=3
"""The trainer's accounts of the payload slots: free, lent, kept by a worker, or held back for a device."""

from libc.stdint cimport uint8_t, uint64_t

from atomics cimport ring_header, ring_payload

cdef struct lending:                    # of a payload whose batch the user has
    uint64_t since                      # nanoseconds; 0: the user has no batch in it
    uint64_t batches                    # that were taken up to then, this one included
    uint64_t logged                     # its first sequence's number in the log


cdef int fold_rested(uint64_t time) except -1           # called with each next(), at this time


cdef class Slots:
    cdef object __weakref__
    cdef Mapping mapping
    cdef ring_header *header
    cdef ring_payload *payload
    cdef int payloads
    cdef readonly int lent              # payloads that a Lease holds
    cdef int spare                      # how many may be lent
    cdef uint8_t *is_lent               # for each payload
    cdef int *free                      # a stack of unused payloads
    cdef int frees
    cdef bint folded                    # payloads that become free give their pages back
    # NOTE [ Pages go back ]
    cdef readonly uint64_t rested_at    # when the last epoch ended; 0: one is under way, or there was none
    cdef uint64_t limit                 # bytes; a payload that has pages for more gives some back
    cdef uint64_t largest               # bytes, of the batches of this period
    cdef int period, counted            # batches, and how many of them were taken
    cdef uint64_t missed                # bytes; a batch of more had its pages given back; NEVER: no payload gave any
    cdef int reserve                    # the first unused payload of the reserve, for those that workers keep
    cdef dict keepers                   # for each payload that workers keep: those of them that live
    cdef uint8_t *held_back             # for each payload: its guarded lease has died, and reclaim() has not come yet
    cdef list returned                  # held back, without events to wait for yet; each with the streams noted
    cdef list reading                   # held back, with the events to wait for
    cdef bint reclaiming                # one_at_a_time() is running a function
    cdef object current                 # returns the current stream of a device; None: no lease is guarded
    cdef tuple devices                  # those that `current` is asked about
    cdef list usual                     # what streams_here() returned last
    cdef Meter meter
    cdef lending *lending               # for each payload

    cdef int pick(self) except -1                       # a free payload, for a worker to fill
    cdef void lend(self, int payload) noexcept          # a lease has it from now on
    cdef void users(self, int payload, uint64_t logged, uint64_t time) noexcept     # the user has its batch since then
    cdef void no_users(self, int payload) noexcept      # the last tensor over it died
    cdef void give_back(self, int payload) noexcept     # its lease has died
    cdef void hold_back(self, int payload) noexcept     # its guarded lease has died
    cdef list streams_here(self)                        # the current streams of this thread
    cdef int await_them(self, Py_ssize_t count, list events) except -1  # await_events()
    cdef int reclaim_at(self, Py_ssize_t at) except -1          # reclaim(), of the item of awaiting() with this index
    cdef int retire(self, int payload, set keepers) except -1   # a lent payload that these workers keep
    cdef int died(self, int worker) except -1           # this worker keeps no payload from now on
    cdef bint fold_one(self, int payload, Py_ssize_t keep=*) noexcept   # give back the pages of a free payload
    cdef Py_ssize_t fold(self, Py_ssize_t bytes) noexcept   # those of several, until they are as many
    cdef Py_ssize_t committed(self) noexcept            # bytes of all payloads that have pages
    cdef bint keeps_pages(self) noexcept                # whether payloads do so in any case
    cdef void seen(self, uint64_t bytes) noexcept       # a batch was taken
    cdef void shrink(self, int payload) noexcept        # leave a free payload what the last batches took
    cdef void close(self) noexcept                      # give back all payloads that are not lent
