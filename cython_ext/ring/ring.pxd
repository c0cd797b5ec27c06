# cython: language_level=3
"""The slot ring: sequences, payload slots, and the leases of what was delivered.

NOTE [ Slot ring ]

The ring has two things in it, apart from one another:

    entries    R of them, each with the word of one sequence (atomics.h) and an area of its own, for the task and for
               what the worker says of the batch.  Sequence s lives in entry s % R, and after it s + R.
    payloads   slots of bytes for what the batch holds.  An entry names the payload that its sequence is to fill.

A batch is one sequence, and its word says where it is on its way:

    trainer: open(worker, task)   writes the task, picks a free payload     -> OPEN(s, worker)    rings its bell
    worker:  claim()              one CAS, by the owner that OPEN names     -> CLAIMED(s, worker)
             ... fetches, collates into the payload ...
    worker:  publish()            one CAS                                   -> READY(s, worker)   rings the ready bell
    trainer: take()               in order of s: the ring is the reorder buffer

Who may touch what follows from the word.  OPEN or CLAIMED: the entry belongs to the worker named, the payload too.
READY: both belong to the trainer.  So nothing here is locked, and nothing can be left locked by a killed process.

A worker walks all sequences in order and passes over those that are not its own, and those that are over.  It
stops at the first one that is not open yet, and sleeps on its own bell; with a bell each, opening one task wakes one
worker.  The trainer sleeps on the ready bell.  Both announce, look again, and only then sleep.

A worker may read the tasks of sequences that are OPEN and name it, before it claims them (NOTE [ Look ahead ] in
look_ahead.py).  They stay as they are, for nobody else may claim them, and the trainer takes back only what a dead
worker has claimed.  What is open for ANY may be another's at any moment, so that is not read.

Where work is stolen, OPEN names ANY: all walk past it, and whose CAS succeeds has it.  The trainer rings one bell
after the other until one of them wakes somebody.  One is enough, for who is awake looks at everything before it
sleeps, and who claims is not taken for a sleeper any more (ring_rise).

A batch cut into chunks is so many sequences, one behind the other, that name the same payload.  Each worker writes the
rows of its chunk, and what it says of them it says in the entry of its own sequence.  The trainer opens them only where
the ring has room for all, and takes the batch when all are READY.

With `in_order=False` a slow batch may not hold up the others, so the trainer takes the lowest sequence that is READY,
and opens the next one whose entry is free: it passes over the sequences of entries that are still in use.  Nobody
can walk then; both sides look through all entries instead (lowest()).

Handing out a batch spends its payload for as long as a tensor over it lives (NOTE [ Lease ] in delivery.py).  The
trainer lends a payload only while fewer than `spare` are lent, and copies the batch out otherwise.  Therefore one
payload for each batch under way (R of them, fewer where they are cut into chunks) and `spare` more are always enough:
open() never waits for a tensor to die.

A payload that a worker turns out to hold on to (a collate function that keeps what it returned) is KEPT: the
trainer copies the batch out, does not use that payload while that worker lives, and takes one from the reserve in its
place.  A worker keeps one at most, for then it stops collating into slots; so the reserve is one payload a worker.  A
batch in chunks is KEPT if any of them is, and its payload is left alone while any of those workers lives.

A worker may die anywhere.  Claiming and recording who claimed are one CAS, and so are publishing and letting go, so
what it held is what CLAIMED names.  Once it is reaped, and nothing of it can write any more, the trainer revokes:

    trainer: revoke(worker)       one CAS a claim                           -> OPEN(s, worker), or OPEN(s, ANY)

and starts another process as the same worker.  That one walks from the lowest sequence that is not taken; OPEN names
the worker and not the process, so it claims what its predecessor had claimed, and what was open for it.  What was open
for ANY may have been passed over by all the others, so revoke() counts (`revocations`), tolls every bell, and who sees
that the count has changed goes back by R sequences: all before that is over.

Workers run other people's code, and some of it writes where it should not.  The control words are in reach of that,
so a side believes what it reads there only within the layout, which it knows for itself: each word is read once
(ring_once) and compared before it is used, without sums that could wrap, and what is impossible is an exception
(overwritten()).  What the trainer wrote itself it does not read back (sequences.pyx).  Pickles are trusted, as in
torch: workers run the user's code, and a pickle that they meant to write is no more than that.

NOTE [ Windows ]

Samples that lie together are read together, if one worker makes all that several batches need of one place, one after
the other.  So batches may be opened in windows.  The sequences of a window are in the order in which they are to be
made: first the rows of one place, batch for batch, then those of the next.  A batch's sequences thus lie between those
of the other batches, and its rows are not one behind the other:

    sequence    0          1          2          3          4          5
    batch       0          1          1          0          1          2
    rows        3, 5, 9    0          2, 4       1, 7       1, 3       0, 1, 2

Workers see no difference, since each still walks all sequences in order.  Only the trainer knows which sequences are
one batch: it keeps a chain of them (sequences.pyx), and takes them by that.  Entries get free out of their order, so a
window is opened where all its entries are free, and a successor walks from the lowest sequence in flight.  Of a task
that has any rows, the indices are followed by the rows; `row` is LISTED then, or LISTED_FIRST where the batch begins.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from posix.types cimport pid_t

from atomics cimport ring_entry, ring_header, ring_payload, ring_worker
from ring.spin cimport ring_spin

cdef enum:
    INDEX, INDICES, PICKLED     # kinds of task
    LISTED = 0xffffffff         # in place of a chunk's first row: its task lists its rows
    LISTED_FIRST = 0xfffffffe   # the same, of the chunk that a batch's description begins with
    NO_CELL = 0xffffffff        # for a sequence that has none
    NO_ROOM = 0xffffffff        # in place of a state's size: the stream has one, and there was no memory for it

cpdef enum:
    # Outcomes of a sequence; Lease.meta() knows that the first two come with a batch.  The last two: a stream has
    # nothing more, and in the last one the worker holds on to what it had begun to make all the same.
    FILLED, KEPT, SKIPPED, SKIPPED_KEPT

# The exception for a word that the other side cannot have written: what it is, what it says, what it may say.
cpdef object overwritten(what, value, limit)

# That this ring has such a worker, payload or entry; else an IndexError.
cdef int check_index(str what, int index, int count) except -1

# The lowest sequence in this state, of this owner (RING_ANY: of any), in these entries (NULL: all), if there is one.
cdef bint lowest(ring_entry *entries, int count, uint32_t state, uint32_t owner, const uint8_t *among,
                 uint64_t *sequence) noexcept nogil


cdef class Mapping:                     # the segment's addresses in this process
    cdef char *base
    cdef readonly Py_ssize_t size
    cdef pid_t pid                      # of the process that mapped it
    cdef bint closed                    # the words may be unmapped: whoever reads them asks check_open() first
    cdef bint whole                     # false once a closed ring has unmapped all but what is lent

    cdef int check_open(self) except -1
    cdef void give_back(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil   # these pages, to the machine
    cdef void unmap(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil


cdef class Ring:                        # what both sides see; TrainerSide and WorkerSide are rings
    cdef object segment                 # segment.Segment: whom to ask for pages
    cdef Mapping mapping
    cdef readonly int workers, entries, payloads, batches
    cdef readonly Py_ssize_t memory_at, memory_stride, area_at, area_stride, slot_at, slot_stride
    cdef readonly int cells             # for what streams say of themselves; 0 where no dataset is a stream
    cdef readonly Py_ssize_t cell_at, cell_stride
    cdef ring_header *header
    cdef ring_worker *worker
    cdef Mapping board                  # of a crew's workers, who serve other rings as well; None: they are this ring's
    cdef ring_worker *bells             # the lines with the workers' bells: on the board, or `worker`
    cdef ring_entry *entry
    cdef ring_payload *payload
    cdef char *lent_from                # where the payloads begin that leases are over: a private view, or the segment
    cdef uint8_t *remapped              # which payloads this process maps from the memfd
    cdef int memfd                      # the overflow segment's descriptor; -1: there is none
    cdef ring_spin spin

    cdef char *slot(self, int payload) noexcept nogil                           # where a payload's bytes begin
    cdef char *area(self, uint64_t sequence) noexcept nogil                     # where a sequence's task begins
    cdef char *cell(self, int cell) noexcept nogil                              # where a stream's state begins
    cdef uint64_t pages_of(self, int payload) noexcept nogil                    # bytes of it that have pages
    cdef int follow(self, int payload) except -1                                # to the memfd, if it has moved there
    # Of a task that was written: what it is, and how long; then the task.
    cdef int measure(self, uint64_t sequence, uint32_t *kind, uint64_t *size) except -1
    cdef object read_task(self, uint64_t sequence, uint32_t kind, uint64_t size)
