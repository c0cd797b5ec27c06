# cython: language_level=3
"""The slot ring, and how batches change hands in it without locks, even if a worker dies: sequences, slots, leases.
It has the rules for work stealing, chunks, windows (`group_by`) and `in_order=False`.

NOTE [ Slot ring ]

The ring has two arrays:

    entries    There are R.  Each has the word of one sequence (atomics.h) and an area for the task and for the worker's
               description of the batch.  Sequence s lives in entry s % R, and sequence s + R comes after it there.
    payloads   The memory for the bytes of batches.  An entry names the payload that its sequence fills.  In the
               documentation for users, payloads are the *slots*.

A batch is one sequence.  The word of the sequence has its state:

    trainer: open(worker, task)   writes the task, picks a free payload     -> OPEN(s, worker)    rings its bell
    worker:  claim()              one CAS, by the owner that OPEN names     -> CLAIMED(s, worker)
             ... fetches, collates into the payload ...
    worker:  publish()            one CAS                                   -> READY(s, worker)   rings the ready bell
    trainer: take()               in order of s: the ring is the reorder buffer

The state decides who may touch the entry and the payload.  OPEN or CLAIMED: the worker that the word names.  READY: the
trainer.  So there are no locks, and a killed process cannot leave one locked.

A worker walks all sequences in order.  It passes over sequences of other workers and over finished ones, stops at the
first one that is not open yet, and sleeps on its own bell.  Each worker has a bell, so opening a task wakes one worker.
The trainer sleeps on the ready bell.  Both announce that they are about to sleep (a worker by its *sleeper bit*), look
once more, and only then sleep.

A worker may read the tasks of OPEN sequences that name it before it claims them (NOTE [ Look ahead ] in look_ahead.py).
These tasks do not change, because no other worker may claim them, and the trainer takes back only claims of dead
workers.  A worker does not read tasks that are open for ANY, because another one may claim them at any moment.

A worker may claim several sequences before it publishes the first of them (claims.pxi), as a stand-in does:
NOTE [ Far workers ] in stand_in.py.  After a claim it calls put_aside(), and can claim again.  put_aside() writes no
word of the ring: it records, in this process, which payload the claim is for.  take_up() continues with that claim.
While a claim is put aside, the worker does not sleep on its bell (it uses claim_at_once()), because the trainer may be
waiting for the very batch that is put aside.  Each claim stays in its own word, so revoke() finds all of them.  Chunks
are not put aside.

With work stealing, OPEN names ANY.  Each worker that comes to such a sequence tries to claim it, and the one whose CAS
succeeds has it.  The trainer rings one bell after the other until a worker wakes.  One worker is enough, because a
worker that is awake looks at everything before it sleeps.  A worker clears its own sleeper bit (ring_rise) before it
claims.  So if a worker's sleeper bit is set, that worker is not busy with a batch.  If it cleared the bit later, the
trainer might ring a busy worker, while an idle one sleeps on.

A batch in chunks is several consecutive sequences that name the same payload.  Each worker writes the rows of its
chunk, and describes them in the entry of its own sequence.  The trainer opens the chunks only if the ring has room for
all of them, and takes the batch when all are READY.

With `in_order=False`, a slow batch must not hold up the others.  So the trainer takes the lowest sequence that is
READY.  If an entry is still in use when its next sequence should be opened, the trainer skips that sequence, and never
uses its number.  Workers cannot walk the sequences then, so both sides search all entries instead (lowest()).

A batch that is handed out keeps its payload for as long as a tensor over it lives (NOTE [ Lease ] in delivery.py).  The
trainer lends a payload only while fewer than `spare` are lent, and copies the batch out otherwise.  So one payload for
each batch under way (R of them, fewer with chunks) and `spare` more are always enough: open() never waits for a tensor
to die.

If a worker holds on to a payload (its collate function keeps what it returned), the batch is KEPT.  The trainer copies
it out, takes a payload from the reserve instead, and does not use the kept one while that worker lives.  From then on,
the worker no longer collates into payloads.  So it keeps one payload at most, and one payload in reserve for each
worker is enough.  A batch in chunks is KEPT if any of its chunks is.  Its payload is then left alone while any worker
that kept one of its chunks lives.

A worker may die anywhere.  One CAS both claims a sequence and records the claimer, and one CAS both publishes it and
lets go of it.  So the sequences that a dead worker held are those whose CLAIMED names it.  The trainer reaps the
process, which can then write nothing more, and revokes its claims:

    trainer: revoke(worker)       one CAS for each claim                    -> OPEN(s, worker), or OPEN(s, ANY)

Then it starts another process as the same worker.  That process walks from the lowest sequence that is not taken.  OPEN
names the worker and not the process.  So the new process claims what its predecessor had claimed, and what was open for
this worker.  The other workers have passed over the sequences that the dead worker had claimed.  If these are open for
ANY now, the others may claim them.  So revoke() increments `revocations` and rings every bell.  A worker that sees a
new count starts to walk again R sequences earlier.  Only R sequences can be in the ring, so all sequences before those
are finished.

Workers run other people's code, and some of it writes to memory that is not its own.  Such writes can reach the control
words.  So each side keeps its own copy of the layout, and checks each word against it before use.  It reads the word
once (ring_once), so that the word cannot change between the check and the use.  No sum in a check can overflow.  An
impossible value raises an exception (overwritten()).  The trainer does not read back what it has written itself
(sequences.pxi).  Pickles are trusted, as in torch: workers run the user's code, so a forged pickle could do no more
than that code.

NOTE [ Windows ]

Samples that are stored together, for example in one row group of a Parquet file (a *place*), should be read together.
So one worker makes all rows of a place for several batches, one after the other, and the trainer opens several batches
at once, as a window.  Each worker's sequences are in the order in which it makes them: first the rows of one place,
batch by batch, then those of its next place.  The sequences of the workers alternate.  So the sequences of a batch lie
between those of other batches, and its rows are not consecutive.  The beginning of a window, with two workers (one has
the sequences 0, 2 and 4, the other 1, 3 and 5):

    sequence    0          1          2          3          4          5
    batch       0          1          1          0          1          2
    rows        3, 5, 9    0          2, 4       1, 7       1, 3       0, 1, 2

Workers see no difference: each still walks all sequences in order.  Only the trainer knows which sequences make up a
batch.  It keeps a chain of them (sequences.pxi), and takes them in that order.  Entries become free out of order.  So a
window is opened only when all its entries are free.  For the same reason, the successor of a dead worker walks from the
lowest sequence in flight.  A task of a window lists its rows, behind its indices.  An ordinary chunk has its first row
in `ask.row`; a task of a window has LISTED there.

NOTE [ Rooms ]

A slot has a room: the range of addresses at which a process maps it.  Rooms are alike at first, and lie one behind the
other, in one mapping.  Addresses are limited (`ulimit -v`), and few slots may ever need much.  So the first rooms share
a part of what a process may map, and a slot that outgrows its room gets a larger one, elsewhere:

    1. In the segment, the bytes of a slot beyond its first room have a place of their own, behind all slots: the slot's
       tail.  A file's size costs nothing, so a tail may hold all memory of the machine.  Growing moves no byte.
    2. Each process maps the slot anew for itself (Ring.reach), when it is about to use bytes beyond its room: the first
       part, and the tail behind it.  How far a slot has pages is in its word (`committed`), so nobody has to tell
       others.  The new room is as large as the slot may become; or if addresses are limited, as large as it is, and the
       next one at least twice as large.  So this is rare, and no batch pays for it.
    3. Former rooms stay mapped until the slot's memory goes, because tensors may lie there: those of the batch that a
       worker fills at that moment.  All rooms show the same bytes.
    4. A slot does not outgrow its room if others map it in their own way: a device that locks pages by their address,
       or a process that reads a served loader.  There are no tails then, and the first rooms are larger.
    5. Where a slot may still move to the memfd, it does so before it outgrows its room.
"""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from posix.types cimport off_t, pid_t

from atomics cimport ring_entry, ring_header, ring_payload, ring_worker
from shmloader.core.figures cimport Figures, Log

cdef extern from "ring/spin.h" nogil:   # how long a side spins before it sleeps
    ctypedef struct ring_spin:
        int yields
    int spin_budget(ring_spin *spin)
    bint spin_once(const ring_spin *spin)
    void spin_learn(ring_spin *spin, int spins, bint met)

cdef enum:
    # kinds of task; a sampler over an array gives numpy.int64
    INDEX, INDICES, PICKLED, NUMPY_INDEX, NUMPY_INDICES
    LISTED = 0xffffffff         # in place of a chunk's first row: its task lists its rows
    NO_CELL = 0xffffffff        # in place of a cell: the sequence has none
    NO_ROOM = 0xffffffff        # in place of a state's size: there was no memory to write the state

cpdef enum:
    # Outcomes of a sequence.  With the first two there is a batch; Lease.meta() relies on their values.  SKIPPED: the
    # stream has ended.  SKIPPED_KEPT: it has ended, and the worker holds on to a batch that it had started to write.
    FILLED, KEPT, SKIPPED, SKIPPED_KEPT

# The exception for a word that the other side cannot have written: its name, its value, and the allowed values.
cpdef object overwritten(what, value, limit)

# Raises an IndexError if the ring has no such worker, payload or entry.
cdef int check_index(str what, int index, int count) except -1

# The lowest sequence in this state, of this owner (RING_ANY: of any), in these entries (NULL: all), if there is one.
cdef bint lowest(ring_entry *entries, int count, uint32_t state, uint32_t owner, const uint8_t *among,
                 uint64_t *sequence) noexcept nogil


cdef struct ring_room:                  # of a slot that has outgrown its first one: NOTE [ Rooms ]
    char *at
    uint64_t bytes
    ring_room *before                   # a smaller one


cdef class Mapping:                     # the segment's addresses in this process
    cdef char *base
    cdef readonly Py_ssize_t size
    cdef pid_t pid                      # of the process that mapped it
    cdef bint closed                    # the words may be unmapped: call check_open() before reading them
    cdef bint whole                     # false once a closed ring has unmapped all but what is lent
    cdef int slots
    cdef Py_ssize_t slot_at, slot_stride
    cdef ring_room **rooms              # for each slot its largest room; NULL: it has its first one

    cdef int check_open(self) except -1
    cdef void give_back(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil   # these pages, to the machine
    cdef void unmap(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil
    cdef int lay_out(self, int slots, Py_ssize_t slot_at, Py_ssize_t slot_stride) except -1
    cdef char *slot(self, int slot) noexcept nogil                              # where its largest room begins
    cdef uint64_t room(self, int slot) noexcept nogil                           # how many bytes that has
    # A larger one, whose tail lies there in the file; false if the process may not map it.
    cdef bint widen(self, int slot, uint64_t bytes, int fd, off_t tail) except -1
    cdef void free_pages(self, int slot, Py_ssize_t first, Py_ssize_t end) noexcept nogil   # these bytes of a slot
    cdef void unmap_slot(self, int slot) noexcept nogil
    cdef void unmap_rooms(self, int slot) noexcept nogil                        # all but its first one


cdef class Ring:                        # what both sides see; TrainerSide and WorkerSide are rings
    cdef object segment                 # segment.Segment, which commits pages
    cdef Mapping mapping
    cdef readonly int workers, entries, payloads, batches
    cdef readonly Py_ssize_t memory_at, memory_stride, area_at, area_stride, slot_at, slot_stride
    cdef readonly int cells             # for the states of streams; 0 if the dataset is no stream
    cdef readonly Py_ssize_t cell_at, cell_stride
    cdef ring_header *header
    cdef ring_worker *worker
    cdef ring_entry *entry
    cdef ring_payload *payload
    cdef Py_ssize_t tail_at, tail_stride    # of what lies beyond a slot's first room; 0: no slot outgrows it
    cdef readonly Py_ssize_t slot_most  # bytes that a slot may have
    cdef uint8_t *remapped              # which payloads this process maps from the memfd
    cdef int memfd                      # the overflow segment's descriptor; -1: there is none
    cdef ring_spin spin

    cdef char *slot(self, int payload) noexcept nogil                           # where a payload's bytes begin
    cdef char *area(self, uint64_t sequence) noexcept nogil                     # where a sequence's task begins
    cdef char *cell(self, int cell) noexcept nogil                              # where a stream's state begins
    cdef uint64_t pages_of(self, int payload) noexcept nogil                    # bytes of it that have pages
    cdef int follow(self, int payload) except -1                                # to the memfd, if it has moved there
    cdef int reach(self, int payload, uint64_t bytes) except -1                 # have addresses for so many bytes of it
    # The kind and the size of a task that was written, and then the task itself.
    cdef int measure(self, uint64_t sequence, uint32_t *kind, uint64_t *size) except -1
    cdef object read_task(self, uint64_t sequence, uint32_t kind, uint64_t size)


# ------------------------------------------------------------------------------------------------------- sequences.pxi

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


# ----------------------------------------------------------------------------------------------------------- turns.pxi

cdef class Meter:                       # of one loader, whatever iterators it has
    cdef readonly Figures figures
    cdef readonly Log log
    cdef readonly object turns          # of living iterators: a set of weak references
    cdef object __weakref__


cdef class Turns:
    cdef readonly Meter meter
    cdef Figures figures
    cdef object __weakref__
    cdef Mapping mapping                # of the words to write; None: there is no ring
    cdef Turns source                   # that of the prefetch thread, whose ring counts the user's turns too
    cdef ring_header *header
    cdef ring_worker *worker
    cdef ring_payload *payload
    cdef readonly int workers, payloads
    cdef uint64_t slot_most
    cdef public object slots            # the ring's Slots; None: there is no ring
    cdef public int kind                # WAIT, or SOURCE_WAIT if a prefetch thread calls next()
    cdef uint64_t asked_at              # 0: no thread is in next()
    cdef uint64_t handed_out_at         # the batch before; 0: there was none in this epoch, or the time is not known
    cdef uint64_t taken_at              # in this next()
    cdef uint64_t logged                # the number in the log of what was taken last
    cdef uint64_t calls                 # of next() in this epoch, that gave a batch
    cdef uint64_t starting              # nanoseconds in iter(), which count as part of the epoch's first next()
    cdef uint64_t available_at          # when all batches up to the one taken last were READY
    cdef uint64_t *asks                 # when next() was called, of the last calls
    cdef int most_asks
    cdef uint64_t asks_made
    cdef bint in_order
    cdef bint workers_added             # the workers' figures were added to the loader's, and are not read again

    cdef void ask(self, uint64_t time) noexcept                 # next() was called
    cdef void hand_out(self, uint64_t time) noexcept            # it returns a batch
    cdef void leave(self) noexcept                              # it returned or raised
    cdef void new_epoch(self, uint64_t epoch) noexcept
    cdef void opened(self) noexcept                             # a batch was opened
    cdef void came(self) noexcept                               # a batch was taken, which may hold nothing
    cdef void took(self, Sequences sequences, ring_given *given, uint64_t used, int lent) noexcept
    cdef int add_workers(self, Figures to) except -1
    cdef void died(self) noexcept
    cdef void waited_for(self, uint64_t opened, uint64_t claimed, uint64_t fetched, uint64_t published,
                         uint64_t time, int worker) noexcept
    cdef uint64_t ready_when_asked(self, uint64_t available) noexcept


# ------------------------------------------------------------------------------------------------------ free_slots.pxi

cdef struct lending:                    # of a payload whose batch the user has
    uint64_t since                      # nanoseconds; 0: the user has no batch in it
    uint64_t batches                    # that were taken up to then, this one included
    uint64_t logged                     # its first sequence's number in the log


cdef int fold_rested(uint64_t time, Py_ssize_t left=*) except -1    # called with each next(), at this time


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
    cdef int others_give_back(self) except -1           # have rings that rest begin to, if all hold much
    cdef void seen(self, uint64_t bytes) noexcept       # a batch was taken
    cdef void shrink(self, int payload) noexcept        # leave a free payload what the last batches took
    cdef void close(self) noexcept                      # give back all payloads that are not lent
