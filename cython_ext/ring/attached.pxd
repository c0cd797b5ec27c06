# cython: language_level=3
"""What a reader does with the ring of another process: wait for its batches, take and lend them.  NOTE [ Readers ]"""

from libc.stdint cimport uint32_t, uint64_t

from shmloader.core.free_slots cimport Slots
from shmloader.core.lease cimport Lease
from shmloader.core.private_view cimport PrivateView
from shmloader.core.ring cimport Ring
from shmloader.core.sequences cimport Sequences, ring_given


cdef class AttachedSide(Ring):
    cdef object __weakref__
    cdef readonly Slots slots
    cdef readonly PrivateView view
    cdef Sequences sequences
    cdef Lease unread                   # what lend() gave, until took()
    cdef readonly uint64_t cursor       # the sequence that is taken next
    cdef readonly uint64_t batch        # of what was taken last: its number in its epoch,
    cdef readonly uint32_t epoch        # the epoch of the ring that it is of,
    cdef readonly uint32_t samples      # and how many are in it
    cdef readonly bint alarmed          # the conductor is gone, or has sent a message: wait() returns at once
    cdef readonly bint passed           # the batch at the cursor is not for this reader any more
    cdef bint left                      # it takes nothing more
    cdef uint32_t bit
    cdef char *copied                   # what the workers wrote of the batch that is read
    cdef size_t room

    cdef bint find_ready(self) noexcept nogil
    cdef int chunks_at_cursor(self, uint32_t *payload) noexcept nogil
    cdef Lease read_entries(self, uint32_t payload, int chunks)
    cdef int copy_answers(self, Lease lease) except -1
