# cython: language_level=3
"""What the trainer does with the ring: open sequences, wait for them, take their batches, look after dead workers."""

from libc.stdint cimport uint64_t

from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport ring_given

include "ring/progress.pxd"
include "ring/indices.pxd"
include "ring/epoch_counts.pxd"
include "ring/free_cells.pxd"
include "ring/task_writer.pxd"
include "ring/window.pxd"
include "ring/opening.pxd"


cdef class TrainerSide(OpeningSide):
    cdef object __weakref__             # a thread must not keep it: it knows the epoch, and so the user's dataset
    cdef readonly uint64_t taken        # the sequence that was taken last; the first one of that batch
    cdef readonly bint alarmed          # a worker died: wait() returns at once until it is looked after
    cdef Lease unread                   # what lend() gave, until took()
    cdef uint64_t *grown                # bytes that had pages in each payload when it was taken last
    cdef int inside                     # threads that may look at the words at any moment
    cdef bint dropped                   # the words are unmapped

    cdef int wait_until(self, double seconds) except -1
    cdef void measure_taken(self, ring_given *given, Lease lease) noexcept
    cdef int hand_out(self) except -1                   # what was taken last is the user's now
    cdef int stream_ended(self, int worker) except -1   # what was taken last is no batch
    cdef int keep_state(self) except -1                 # the batch taken last is dropped, but its state counts
    cdef void drop_words(self) noexcept

include "ring/drawing.pxd"
