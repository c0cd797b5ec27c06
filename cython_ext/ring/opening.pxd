# cython: language_level=3
"""What the trainer does with the ring to have batches made: begin epochs, give tasks to workers, and wake these."""

from libc.stdint cimport uint32_t, uint64_t

from shmloader.core.epoch_counts cimport EpochCounts
from shmloader.core.free_cells cimport Cells
from shmloader.core.free_slots cimport Slots
from shmloader.core.ring cimport Ring
from shmloader.core.sequences cimport Sequences
from shmloader.core.task_writer cimport TaskWriter
from shmloader.core.turns cimport Turns
from shmloader.core.window cimport given_task


cdef class OpeningSide(Ring):
    cdef readonly Sequences sequences   # those in flight
    cdef readonly Slots slots           # which payloads are free, and who has the others
    cdef readonly Turns turns           # measures them
    cdef readonly EpochCounts current   # the epoch whose batches are taken and handed out
    cdef readonly int under_way         # batches opened and not taken
    cdef public int most                # how many may be; never more than `batches`
    cdef readonly uint64_t epoch        # how many epochs were begun before the one that was begun last
    cdef readonly bint stopped          # workers were asked to leave
    cdef public int window              # how many batches are opened together: NOTE [ Windows ]; 1: one by one
    cdef readonly bint batched          # whether a task is the indices of a batch; if not, it is one sample's
    cdef Cells cell_owners              # which sequence or worker has each cell
    cdef bint begun                     # whether any epoch was
    cdef bint in_order
    cdef TaskWriter tasks
    cdef int next_bell                  # where ring_one() begins

    cdef int forget_epoch(self) except -1
    cpdef bint has_room(self, int chunks=*) except -1
    cdef int samples_of(self, task) except -1
    cdef int pass_over(self, task) except -1            # an error was raised in place of a batch that cannot be opened
    cdef int check_may_open(self, int worker, int chunks) except -1
    cdef int begin_batch(self, int worker, uint32_t samples) except -1
    cdef int give(self, given_task *task) except -1
    cdef void ring_one(self) noexcept nogil
