# cython: language_level=3
"""The trainer's accounts of the sequences in flight: the arguments and the worker of each, and which one is next."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from atomics cimport ring_entry

cdef struct ring_given:
    uint64_t sequence
    int worker, payload                 # the worker, or ANY
    int chunks                          # sequences of the batch that begins here; 0 in its further ones
    uint32_t row, rows                  # of a chunk: its first row, and the batch's; rows 0: a whole batch
    uint64_t batch                      # of its epoch
    uint32_t samples                    # of the batch that begins here
    uint32_t cell                       # for its stream's state
    uint64_t opened_at
    uint64_t then                       # the sequence that is taken after this one, if one is in flight


cdef class Sequences:
    cdef Mapping mapping
    cdef ring_entry *entry
    cdef int workers, entries
    cdef bint in_order
    cdef readonly int in_flight         # sequences opened and not taken
    cdef readonly uint64_t next_open    # the sequence that will be opened next
    cdef readonly uint64_t next_take    # the sequence that will be taken next; out of order: once it is ready
    cdef int seen                       # chunks of the next batch that were found READY
    cdef uint64_t unseen                # its first sequence that was not found READY
    cdef uint64_t last                  # in order: the sequence in flight that will be taken last
    cdef list listed                    # for each entry: the rows of its chunk, if they are listed: NOTE [ Windows ]
    cdef uint8_t *busy                  # the entries that the sequences in flight are in
    cdef ring_given *given              # for each of these entries: what it was opened with

    cdef void opened(self, int worker, int payload, int chunks, uint32_t row, uint32_t rows, uint64_t batch,
                     uint32_t samples, uint32_t cell, uint64_t time) noexcept
    # Take the last `count` sequences in this order, whose numbers begin at 0, after the sequence `before`.
    cdef void take_by(self, const int *order, int count, uint64_t before) noexcept
    cdef void pass_over(self) noexcept                  # advance next_open to a free entry
    cdef bint find_ready(self) noexcept nogil           # find the next batch that can be taken; false: there is none
    cdef ring_given *next_batch(self) except NULL       # the batch that find_ready() found
    cdef void took(self, int chunks) noexcept           # that batch was taken
    cdef int lost(self) noexcept nogil                  # 1 + an entry whose word was overwritten; 0: none
    cdef bint is_lost(self, int k) noexcept nogil       # whether this entry's word has an impossible value
    cdef object overwritten(self, int entry)            # the exception for that
    # Whether an entry in use has an owner, and which worker that is.
    cdef bint owned(self, int entry, uint64_t word, int *owner) noexcept nogil
    cdef list of(self, int worker, uint32_t state)      # the sequences in this state that this worker owns
    cdef bint may_own(self, int entry, uint64_t word) noexcept nogil
    cdef int entry_of(self, uint64_t sequence) except -1  # of a sequence in flight
