# cython: language_level=3
"""What the trainer does with the ring: open sequences, wait for them, take their batches, look after dead workers."""

from libc.stdint cimport uint32_t, uint64_t
from posix.time cimport timespec

from shmloader.core.epoch_counts cimport EpochCounts, Reading
from shmloader.core.free_cells cimport Cells
from shmloader.core.lease cimport Lease
from shmloader.core.private_view cimport PrivateView
from shmloader.core.readers cimport Readers
from shmloader.core.ring cimport Ring
from shmloader.core.sequences cimport Sequences, ring_given
from shmloader.core.free_slots cimport Slots
from shmloader.core.task_writer cimport TaskWriter
from shmloader.core.turns cimport Turns
from shmloader.core.window cimport given_task


cdef class TrainerSide(Ring):
    cdef object __weakref__             # a thread must not keep it: it knows the epoch, and so the user's dataset
    cdef readonly Sequences sequences   # those in flight
    cdef readonly Slots slots           # whose each payload is
    cdef readonly Turns turns           # measures them
    cdef readonly Readers readers       # the other processes that read; None: there are none
    cdef PrivateView view               # what this process sees of the payloads then
    cdef readonly EpochCounts current   # the epoch whose batches are taken and handed out
    cdef readonly EpochCounts next      # the one whose batches are opened behind all of the current one's; None: none is
    cdef readonly int under_way         # batches opened and not taken, of both
    cdef public int most                # how many may be; never more than `batches`
    cdef readonly uint64_t epoch        # how many epochs were begun before the one that was begun last
    cdef readonly uint64_t taken        # the sequence that was taken last; the first one of that batch
    cdef readonly bint stopped          # workers have been told to leave
    cdef readonly bint alarmed          # a worker died: wait() returns at once until it is looked after
    cdef public int window              # how many batches are opened together: NOTE [ Windows ]; 1: each for itself
    cdef readonly bint batched          # whether a task is the indices of a batch; if not, it is one sample's
    cdef Cells cell_owners              # whose each cell is
    cdef bint begun                     # whether any epoch was
    cdef bint in_order
    cdef TaskWriter tasks
    cdef Lease unread                   # what lend() gave, until took()
    cdef uint64_t *grown                # bytes that had pages in each payload when it was taken last
    cdef int next_bell                  # where ring_one() begins
    cdef int inside                     # threads that may look at the words at any moment
    cdef bint dropped                   # the words are unmapped

    cpdef bint has_room(self, int chunks=*) except -1
    cdef bint may_open(self) noexcept                   # another batch; asked only where others read
    cdef bint can_go_on(self) noexcept                  # a batch is ready; or where others read, one can be opened
    cdef readonly bint wants_room       # a batch could not be opened, for readers have not taken what is before it
    cdef int enrol(self, EpochCounts epoch, dataset_epoch, uint64_t seed, bint drops) except -1
    cdef int hand_out(self) except -1                   # what was taken last is the user's now
    cdef int pass_over(self, task) except -1            # an error was raised in place of a batch that cannot be opened
    cdef int stream_ended(self, int worker) except -1   # what was taken last is no batch
    cdef int keep_state(self) except -1                 # what was taken last is nobody's, but its state counts
    cdef int samples_of(self, task) except -1
    cdef int check_may_open(self, int worker, int chunks) except -1
    cdef EpochCounts opens(self)
    cdef int begin_batch(self, int worker, uint32_t samples) except -1
    cdef int give(self, given_task *task) except -1
    cdef Reading reading(self)                          # of whoever takes the next batch
    cdef void measure_taken(self, ring_given *given, Lease lease) noexcept
    cdef void ring_one(self) noexcept nogil
    cdef int wait_until(self, double seconds) except -1
    cdef int sleep_for_room(self, timespec *deadline) except -1
    cdef int forget_epochs(self) except -1
    cdef void drop_words(self) noexcept
