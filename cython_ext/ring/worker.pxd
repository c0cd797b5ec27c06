# cython: language_level=3
"""What one worker does with the ring: claim a sequence, fill its payload, publish it.

NOTE [ Forked children ]

    A dataset may fork a process.  The child has a copy of the worker and maps the same ring.  It may collate.  It may
    also leave the dataset's code, by returning or by an exception.  It would then continue as a second worker with the
    same number, in its parent's slot.  So each WorkerSide records a count that every fork increments in the child
    (forks.h):

    1. If the count has grown since then, this is a child, and every method that would touch the ring raises instead.
    2. In a child, default_collate makes tensors outside the slot, as it does in further threads of the worker
       (batch_writer.pyx).
    3. If an exception leaves the dataset's code in a child, the child ends with that exception, as any process does
       (loop.py).  A child that returns from the dataset's code calls a method of the ring next, and ends with the error
       of rule 1.

    If the child writes to a tensor that its parent had made over the slot, the parent's batch changes.  That is so with
    torch's workers, too, because they collate into shared memory.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t

from atomics cimport ring_entry, ring_header, ring_memory, ring_worker
from shmloader.core.ring cimport Ring

# ------------------------------------------------------------------------------------------------------------ lane.pxi

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


# ----------------------------------------------------------------------------------------------------------- parts.pxi

cdef class Fill:
    cdef Ring ring              # keeps the payload mapped
    cdef char *data
    cdef Py_ssize_t bytes
    cdef Fill former            # of the same batch, over a room that it has outgrown: NOTE [ Rooms ] in ring.pxd


cdef class Part:
    cdef Fill fill              # keeps the payload mapped, and is seen by has_views()
    cdef char *data
    cdef Py_ssize_t at, bytes   # in the payload
    cdef Py_ssize_t before      # how many bytes were allocated without it


cdef class Parts:
    cdef list kept                      # of Part, in the order of the payload; empty in chunks

    cdef Py_ssize_t without_last(self, Py_ssize_t used) noexcept    # how many bytes are allocated then
    cdef Py_ssize_t unused(self, Py_ssize_t bytes) noexcept         # where such a part is, which is none now; or -1
    cdef int count_unused(self) noexcept


# -------------------------------------------------------------------------------------------------------- handover.pxi

cdef class Handover:
    cdef char *at                       # the worker's two halves, in the memory of the owner's ring
    cdef Py_ssize_t stride              # bytes from one half to the other

    # `claimed` is the sequence that the worker has claimed.
    cdef int leave(self, uint64_t claimed, bytes states) except -1
    cdef bytes take(self, uint64_t claimed)
    cdef ring_memory *last(self, uint64_t claimed) noexcept nogil
    cdef ring_memory *half(self, int at) noexcept nogil
    cdef Py_ssize_t room(self) except -1


# ---------------------------------------------------------------------------------------------------- mapped_pages.pxi

cdef class MappedPages:
    cdef uint64_t first, most       # the first piece of the mapping, and how many it has
    cdef uint32_t folds             # of the ring, when the pieces were noted
    cdef uint8_t *mapped            # for each piece, whether it was mapped; a page of it for each 256 MiB used

    cdef int follow(self, uint32_t folds) except -1
    cdef int before_write(self, uint64_t address, uint64_t bytes, uint64_t fresh) except -1


cdef class WorkerSide(Ring):
    cdef readonly int me
    cdef readonly int current           # the payload being filled; -1 between tasks
    cdef readonly Py_ssize_t used       # bytes of it allocated so far
    cdef uint64_t fresh                 # where the pages begin that it did not have when it was claimed
    cdef readonly uint32_t row, rows    # of the chunk being filled: its first row, and the batch's; 0: a whole batch
    cdef readonly bint listed           # whether its task lists its rows instead: NOTE [ Windows ]
    cdef unsigned forks                 # how many forks there had been when this process became the worker
    cdef uint64_t cursor                # the lowest sequence not yet passed
    cdef uint32_t who                   # the owner of the sequence that find_open() found: this worker, or ANY
    cdef uint32_t revocations           # their count when this worker looked last
    cdef bint in_order                  # whether it walks, or looks through all entries
    cdef uint64_t task_bytes            # of the task that is claimed, in the entry's area
    cdef uint32_t to_leave              # the cell for the stream's state
    cdef uint32_t state_size            # bytes that were left there, or of the report
    cdef uint64_t described             # where what describe() wrote ends, in the entry's area
    cdef uint64_t *cell_room            # bytes that are known here to have pages in each cell
    cdef uint64_t *room                 # bytes that are known here to have pages in each entry's area
    cdef Fill fill
    cdef Parts parts                    # of the payload
    cdef MappedPages mapped
    cdef Lane lane
    cdef Handover handover

    # Filling the payload of what is claimed; each raises where nothing is.
    cpdef Py_ssize_t allocate(self, Py_ssize_t bytes) except -1         # and have pages for them
    cpdef int map_written(self, Py_ssize_t at, Py_ssize_t bytes) except -1
    cpdef Fill buffer(self)
    cdef void over_room(self, Fill former)
    cdef Part part(self, Py_ssize_t bytes)                              # for a leaf that may not be in the batch
    cpdef int unused_parts(self) noexcept
    cpdef Py_ssize_t offset_of(self, uint64_t address, Py_ssize_t bytes) except? -1
    cpdef uint64_t address(self, Py_ssize_t at) except 0
    cpdef int write(self, Py_ssize_t at, object data) except -1
    cpdef int describe(self, list words, bytes plan, bytes beside=*) except -1
    cpdef int point_to_objects(self, Py_ssize_t at, Py_ssize_t size) except -1

    cdef bint find_open(self) noexcept nogil
    cdef object begin(self)                                             # the task of what was claimed
    cdef bint over(self) noexcept nogil
    cdef bint is_forked(self) noexcept nogil                            # this process, from the worker
    cdef int check_not_forked(self) except -1
    cdef int check_claimed(self) except -1
    cdef int check_inside(self, Py_ssize_t at, Py_ssize_t bytes) except -1
