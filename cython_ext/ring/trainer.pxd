# cython: language_level=3
"""What the trainer does with the ring: open sequences, wait for them, take their batches, look after dead workers."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from atomics cimport ring_entry
from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport Mapping, Ring, Sequences, Slots, Turns, ring_given

# -------------------------------------------------------------------------------------------------------- progress.pxi

cdef class Progress:
    cdef readonly uint64_t batches      # of the epoch, handed out
    cdef readonly uint64_t samples      # in these
    cdef readonly list of_workers       # of streams: batches of each worker that were handed out
    cdef readonly list ended            # of streams: whether each worker has nothing more to give
    cdef public list states             # of streams: the state of each then; None: the ring's cells have them
    cdef readonly int latest            # of streams: the worker whose batch was handed out last; -1: none yet

    cdef int end(self, int worker) except -1
    cdef bint has_ended(self) noexcept  # of streams: whether no worker has anything more to give
    cdef int count(self, uint32_t samples, int worker) except -1


# --------------------------------------------------------------------------------------------------------- indices.pxi

cdef enum last_draw:    # its result
    GAVE                # an index; or nothing was drawn yet
    LOST                # a signal handler raised during it, which ends a sampler that is a generator
    RAISED              # the sampler raised; it may be asked again
    EXHAUSTED           # there are no more


cdef class Indices:
    cdef public object indices          # the iterator over those that are left
    cdef last_draw last

    cdef object draw(self, uint64_t count)


# ---------------------------------------------------------------------------------------------------- epoch_counts.pxi

cdef class Reading:
    cdef readonly uint64_t taken        # batches that were taken and read, or have an error in their place
    cdef object ready                   # a batch that was taken and is not handed out yet
    cdef readonly uint32_t samples      # how many are in it
    cdef int worker                     # which worker made it
    cdef readonly Progress delivered    # what was handed out
    cdef public bint ended              # next() has raised StopIteration at the epoch's end


cdef class EpochCounts:
    # the conductor's
    cdef public Indices source          # gives the indices; None before the first draw
    cdef object drawn                   # an index that was drawn and is not opened yet
    # without workers: the indices whose batches are not handed out, in the order in which they were drawn
    cdef list pending
    cdef uint64_t asked                 # without workers: how many samples were drawn
    # Indices that were drawn and are not opened yet: a window is drawn as a whole before it is opened.
    cdef list waiting
    cdef bint refused                   # `drawn`, or with windows the first one of `waiting`, could not be opened
    cdef readonly uint64_t opened       # batches that were opened, or have an error in their place
    cdef readonly uint64_t samples      # how many samples are in these
    cdef public int last_worker         # the worker that the last batch was opened for; -1: none yet
    cdef readonly uint64_t first        # the sequence of the first batch
    # The number that the dataset has from set_epoch() when the first index is drawn; RING_NO_EPOCH: none.  Then a list of
    # pairs: from this draw on, it has another number.
    cdef int64_t dataset_epoch
    cdef list later
    # the reader's
    cdef readonly Reading reading

    cdef bint is_under_way(self) noexcept   # whether a batch was opened and is not taken
    cdef list of_this_thread(self, bint is_made)    # one of `pending`
    cdef int64_t number_of(self, uint64_t draw) except? -1      # the dataset's when this index was drawn
    # Whether nothing is left to draw, and all opened batches were handed out.  It is computed, never set.  A closed or
    # interrupted iterator gives no more batches either, but its epoch is not over.
    cdef bint is_over(self) noexcept


# ------------------------------------------------------------------------------------------------------ free_cells.pxi

cdef class Cells:
    cdef Mapping mapping
    cdef int count, workers
    cdef Py_ssize_t cell_at, cell_stride
    cdef list free                      # cells that belong to no sequence and no worker
    cdef list left                      # for each worker: the cell of its last state that counted, and the bytes in it
    cdef uint32_t taken, size           # the cell of the batch that was taken last, and the bytes in it; or NO_CELL

    cdef int begin(self) except -1
    cdef int check_room(self, int sequences) except -1
    cdef uint32_t give(self) except? 0xffffffff         # for a sequence that is about to be opened
    cdef int took(self, uint32_t cell, uint32_t size) except -1     # the batch of this cell was taken
    cdef int keep(self, int worker) except -1           # the state of the batch that was taken last counts from now on
    cdef list read(self)


# ----------------------------------------------------------------------------------------------------- task_writer.pxi

cdef class TaskWriter:
    cdef object segment, dumps
    cdef Mapping mapping
    cdef ring_entry *entry
    cdef int entries
    cdef Py_ssize_t area_at, area_stride
    cdef uint64_t *room                 # bytes that have pages in each entry's area, for tasks

    cdef int write(self, uint64_t sequence, task) except -1
    cdef char *area_for(self, uint64_t sequence, Py_ssize_t bytes) except NULL
    cdef bint indices_written(self, int64_t *at, list indices, Py_ssize_t count, bint numpys) except -1


# ---------------------------------------------------------------------------------------------------------- window.pxi

cdef struct given_task:
    int worker, payload
    int chunks                          # in the batch's first task: how many it is cut into; 0 in its further tasks
    uint32_t row, asked_row, rows       # of a chunk: its first row, the `row` that its worker gets, the batch's rows
    uint32_t samples                    # of the whole batch; 0 in its further chunks
    uint64_t seed, batch


cdef class Window:
    cdef int count, batches             # how many tasks and batches
    cdef given_task *given              # for each task
    cdef int *order                     # the tasks in the order in which they are taken: batch by batch
    cdef int *head                      # of each batch: its first task
    cdef uint32_t *samples              # of each batch
    cdef list written, listed           # for each task: the indices and rows for its worker; its rows, or None

    cdef void use(self, int at, int payload, uint64_t batch) noexcept      # give a batch its payload and number


# --------------------------------------------------------------------------------------------------------- opening.pxi

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


# --------------------------------------------------------------------------------------------------------- drawing.pxi

cdef class Drawing:
    cdef TrainerSide ring

    cdef object draw(self, EpochCounts epoch)           # the next index; NOTHING if its source has no more
    # Whether another exception of the sampler, which has raised one, would take no batch's place (rule 8).
    cdef bint takes_no_place(self, EpochCounts epoch) noexcept
