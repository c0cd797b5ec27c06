# cython: language_level=3, boundscheck=False, wraparound=False
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
(overwritten()).  What the trainer wrote itself it does not read back (TrainerSide.given).  Pickles are trusted, as in
torch: workers run the user's code, and a pickle that they meant to write is no more than that.
"""

import _thread

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact, PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport EINTR, ETIMEDOUT
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_FIXED, MAP_SHARED, PROT_READ, PROT_WRITE, madvise, mmap, munmap
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.types cimport pid_t
from posix.unistd cimport getpid

from atomics cimport (
    RING_ANY, RING_CLAIMED, RING_MAGIC, RING_OPEN, RING_READY, RING_STEP, RING_VERSION, RING_VOID, AFTER_ANNOUNCE,
    AFTER_BELL, AFTER_CLAIM, AFTER_OVERFLOW, AFTER_PUBLISH, BEFORE_PUBLISH, WHILE_FILLING, WHILE_REMEMBERING,
    ring_announce, ring_answer, ring_claim, ring_claimed_at, ring_committed, ring_entry, ring_forget, ring_header,
    ring_load, ring_memory, ring_note_claimed, ring_note_committed, ring_note_revoked, ring_once, ring_once_32,
    ring_open, ring_owner, ring_payload, ring_publish, ring_raise, ring_raised, ring_remember,
    ring_remembered, ring_revocations, ring_revoke, ring_ring, ring_rise, ring_seq, ring_sleep, ring_state, ring_toll,
    ring_worker,
)

cdef extern from "clock.h" nogil:
    uint64_t now "clock_now"()

cdef extern from "spin.h" nogil:
    ctypedef struct ring_spin:
        int yields
    int spin_budget(ring_spin *spin)
    bint spin_once(const ring_spin *spin)
    void spin_learn(ring_spin *spin, int spins, bint met)

cdef extern from *:
    """
    #include <sys/mman.h>
    static inline void ring_peek(const volatile char *at) { (void)*at; }
    """
    enum: MAP_NORESERVE, MADV_REMOVE, MADV_DONTDUMP
    void ring_peek(const char *at) nogil

cdef enum:
    ALIGN = 128
    AROUND = 65536              # bytes, aligned, that the kernel maps with one read, by default (fault_around_bytes)
    INDEX, INDICES, PICKLED     # kinds of task

cdef uint64_t NOWHERE = <uint64_t>-1    # no sequence

ANY = RING_ANY      # for TrainerSide.open(), instead of a worker

FILLED, KEPT, SKIPPED = range(3)    # outcomes; Lease.meta() knows that the first two come with a batch
HEADER_BYTES = sizeof(ring_header)
WORKER_BYTES = sizeof(ring_worker)
ENTRY_BYTES = sizeof(ring_entry)
PAYLOAD_BYTES = sizeof(ring_payload)


def overwritten(what, value, limit) -> RuntimeError:
    """The exception for a word that the other side cannot have written: what it is, what it says, what it may say."""
    may_be = f"at most {limit}" if type(limit) is int else limit
    return RuntimeError(f"the ring's memory was overwritten: {what} is {value}, and may be {may_be}. Some code writes "
                        "to memory that is not its own: in a worker process, a C extension or ctypes")


cdef class Mapping:
    """The segment's addresses in this process.

    Args:
        fd: the segment; it may be closed afterwards.
        size: bytes to map, from its start.  They cost address space alone until they are committed.

    Raises:
        OSError: ENOMEM where the process's address space is limited (RLIMIT_AS) to less.
    """
    cdef char *base
    cdef readonly Py_ssize_t size
    cdef bint whole                     # false once the ring is closed: then only what is lent is still mapped

    def __cinit__(self, int fd, Py_ssize_t size):
        cdef void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
        if at == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base, self.size, self.whole = <char *>at, size, True
        madvise(at, size, MADV_DONTDUMP)    # a core dump of the trainer need not hold the ring

    def __dealloc__(self):
        if self.base != NULL and self.whole:
            munmap(self.base, self.size)

    cdef void drop(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil:
        munmap(self.base + at, bytes)


cdef class Ring:
    """One side's view of the ring.  Use TrainerSide or WorkerSide.

    Args:
        mapping: the segment, mapped.
        geometry: where things lie in it (segment.Geometry).
        memfd: the overflow segment's descriptor, or -1; it must stay open while payloads may overflow.
        spin: whether a waiting side may pause on its core before it sleeps; else it yields it (spin.h).
    """
    cdef Mapping mapping
    cdef char *base
    cdef readonly int workers, entries, payloads, batches
    cdef readonly Py_ssize_t memory_at, memory_stride, area_at, area_stride, slot_at, slot_stride
    cdef ring_header *header
    cdef ring_worker *worker
    cdef ring_entry *entry
    cdef ring_payload *payload
    cdef uint8_t *remapped              # which payloads this process maps from the memfd
    cdef int memfd                      # -1: there is none
    cdef bint closed                    # the words may be unmapped: whoever reads them asks check_open() first
    cdef ring_spin spin

    def __cinit__(self, Mapping mapping, geometry, int memfd, bint spin, *_):
        self.mapping, self.base, self.memfd = mapping, mapping.base, memfd
        self.workers, self.entries, self.payloads = geometry.workers, geometry.entries, geometry.payloads
        self.batches = geometry.batches
        self.memory_at, self.memory_stride = geometry.memory_at, geometry.memory_stride
        self.area_at, self.area_stride = geometry.area_at, geometry.area_stride
        self.slot_at, self.slot_stride = geometry.slot_at, geometry.slot_stride
        self.spin.yields = not spin
        self.header = <ring_header *>self.base
        self.worker = <ring_worker *>(self.base + sizeof(ring_header))
        self.entry = <ring_entry *>(self.worker + self.workers)
        self.payload = <ring_payload *>(self.entry + self.entries)
        self.remapped = <uint8_t *>calloc(self.payloads, 1)
        if self.remapped == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.remapped)

    @cython.final
    cdef inline int check_open(self) except -1:
        if self.closed:
            raise RuntimeError("this iterator has been shut down: iterate over the DataLoader again")
        return 0

    @cython.final
    cdef inline int check_payload(self, int payload) except -1:
        if not 0 <= payload < self.payloads:
            raise IndexError(f"there is no payload {payload}: this ring's are 0 to {self.payloads - 1}")
        return 0

    @cython.final
    cdef inline int check_worker(self, int worker) except -1:
        if not 0 <= worker < self.workers:
            raise IndexError(f"there is no worker {worker}: this ring's are 0 to {self.workers - 1}")
        return 0

    cdef bint lowest(self, uint32_t state, uint32_t owner, const uint8_t *among, uint64_t *seq) noexcept nogil:
        """Find the lowest sequence in this state, of this owner (RING_ANY: of any), in these entries (NULL: all).

        One pass may meet a sequence that was written after it had passed the entry of an earlier one of the same
        writer.  That earlier one is seen by the next pass, so passes are made until one finds nothing lower: what one
        worker published, or what was opened for it, is found in its order.
        """
        cdef uint64_t word, before, found = NOWHERE
        cdef int k
        while True:
            before = found
            for k in range(self.entries):
                if among != NULL and not among[k]:
                    continue
                word = ring_load(&self.entry[k])
                if (ring_state(word) == state and ring_seq(word) < found
                        and (owner == RING_ANY or ring_owner(word) == owner)
                        and ring_seq(word) % self.entries == <uint64_t>k):      # else it was overwritten
                    found = ring_seq(word)
            if found == before:
                break
        if found == NOWHERE:
            return False
        seq[0] = found
        return True

    cdef char *slot(self, int payload) noexcept nogil:
        return self.base + self.slot_at + payload * self.slot_stride

    cdef int follow(self, int payload) except -1:
        """Map a payload from the memfd, if it has moved there since this process last looked."""
        cdef uint32_t moved = ring_once_32(&self.payload[payload].overflowed)
        if not moved or self.remapped[payload]:
            return 0
        if self.memfd < 0:
            raise overwritten("a payload's mark that it has moved to the memfd", moved, 0)
        cdef char *at = self.slot(payload)
        cdef Py_ssize_t offset = at - self.base
        if mmap(at, self.slot_stride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                self.memfd, offset) == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        madvise(at, self.slot_stride, MADV_DONTDUMP)
        self.remapped[payload] = True
        return 0

    @cython.final
    cdef inline uint64_t pages_of(self, int payload) noexcept nogil:
        """Bytes of this payload that have pages, as the word says; no more than it has bytes."""
        return min(ring_committed(&self.payload[payload]), <uint64_t>self.slot_stride)

    def committed(self, int payload) -> int:
        """Bytes of this payload that have pages.  Exact for its holder, an estimate for others."""
        self.check_open()
        self.check_payload(payload)
        return self.pages_of(payload)

    def committed_in_all(self) -> int:
        """Bytes of all payloads that have pages: an estimate, others may be growing theirs."""
        cdef int k
        self.check_open()
        return sum([self.pages_of(k) for k in range(self.payloads)])

    def note_committed(self, int payload, Py_ssize_t bytes) -> None:
        """Say that the first `bytes` of this payload have pages now.  By its holder."""
        self.check_open()
        self.check_payload(payload)
        ring_note_committed(&self.payload[payload], bytes)

    def slot_offset(self, int payload) -> int:
        """Where this payload starts, in bytes from the segment's start."""
        self.check_open()
        self.check_payload(payload)
        return self.slot_at + payload * self.slot_stride

    def overflowed(self, int payload) -> bool:
        """Whether this payload's pages are in the memfd."""
        self.check_open()
        self.check_payload(payload)
        return ring_once_32(&self.payload[payload].overflowed) != 0

    def move_to_memfd(self, int payload, Py_ssize_t keep) -> None:
        """Put this payload into the memfd, which has pages for it, with its first `keep` bytes; by its holder.

        Addresses stay as they are, so tensors over the payload live on.  Its pages in /dev/shm are given back.
        """
        cdef char *old = self.slot(payload)
        cdef void *new
        cdef Py_ssize_t offset = old - self.base
        self.check_open()
        self.check_payload(payload)
        if keep:
            new = mmap(NULL, keep, PROT_READ | PROT_WRITE, MAP_SHARED, self.memfd, offset)
            if new == MAP_FAILED:
                PyErr_SetFromErrno(OSError)
            with nogil:
                memcpy(new, old, keep)
            munmap(new, keep)
        self.payload[payload].overflowed = 1    # first: whoever dies behind this line leaves a payload that has pages
        RING_STEP(AFTER_OVERFLOW)
        madvise(old, self.slot_stride, MADV_REMOVE)
        self.follow(payload)

    cdef ring_memory *memory(self, int worker, int half) noexcept nogil:
        return <ring_memory *>(self.base + self.memory_at + (2 * worker + half) * self.memory_stride)

    cdef char *area(self, uint64_t sequence) noexcept nogil:
        return self.base + self.area_at + (sequence % self.entries) * self.area_stride

    cdef int measure(self, uint64_t sequence, uint32_t *kind, uint64_t *size) except -1:
        """Of the task of a sequence, what it is and how long, in indices, or in bytes where it is pickled."""
        cdef ring_entry *entry = &self.entry[sequence % self.entries]
        cdef uint64_t most
        kind[0], size[0] = ring_once_32(&entry.ask.task_kind), ring_once(&entry.ask.task_size)
        most = self.area_stride if kind[0] == PICKLED else self.area_stride // 8
        if not INDEX <= kind[0] <= PICKLED:
            raise overwritten("a task's kind", kind[0], f"{INDEX} to {PICKLED}")
        if size[0] > most:
            raise overwritten("a task's size", size[0], most)
        return 0

    cdef object read_task(self, uint64_t sequence, uint32_t kind, uint64_t size):
        """The task, once it is measured."""
        cdef char *area = self.area(sequence)
        cdef int64_t *indices = <int64_t *>area
        cdef Py_ssize_t k, n = size
        cdef object index
        if kind == INDEX:
            return PyLong_FromLongLong(indices[0])
        if kind == PICKLED:
            return PyBytes_FromStringAndSize(area, n)
        cdef list task = PyList_New(n)
        for k in range(n):
            index = PyLong_FromLongLong(indices[k])
            Py_INCREF(index)
            PyList_SET_ITEM(task, k, index)
        return task


cdef inline bint until(double seconds, timespec *deadline) noexcept nogil:
    """The deadline `seconds` from now; false where there is none (seconds < 0)."""
    cdef int64_t nanoseconds
    if seconds < 0:
        return False
    clock_gettime(CLOCK_MONOTONIC, deadline)
    nanoseconds = <int64_t>(min(seconds, 1e9) * 1e9) + deadline.tv_nsec
    deadline.tv_sec += nanoseconds // 1000000000
    deadline.tv_nsec = nanoseconds % 1000000000
    return True


cdef struct ring_given:
    uint64_t sequence
    int worker, payload                 # the worker, or ANY
    int chunks                          # sequences of the batch that begins here; 0 in its further ones
    uint32_t row, rows
    uint64_t batch                      # of its epoch


@cython.final
cdef class TrainerSide(Ring):
    """What the trainer does: opens sequences, waits for them, lends their payloads.  One thread at a time.

    Args:
        spare: payloads that may be lent at once.
        in_order: whether batches are taken in their order, or as they become ready; then none is cut into chunks.
    """
    cdef readonly int lent              # payloads that a Lease holds
    cdef readonly uint64_t next_open    # the sequence that open() will open
    cdef readonly uint64_t next_take    # the sequence that take() will take; out of order: once it is ready
    cdef readonly uint64_t taken        # the one that it took last; the first one of that batch
    cdef readonly int in_flight         # sequences opened and not taken
    cdef readonly int under_way         # batches opened and not taken
    cdef readonly uint64_t opened       # batches opened in this epoch
    cdef readonly uint64_t epoch        # how many epochs were begun before this one
    cdef bint begun                     # whether any was
    cdef Lease unread                   # what lend() gave, until took()
    cdef int seen                       # chunks of the next batch that are known to be READY
    cdef int next_bell                  # where ring_one() begins
    cdef uint8_t *busy                  # the entries that the sequences in flight are in
    cdef ring_given *given              # for each of these entries: what it was opened with
    cdef bint in_order
    cdef readonly bint stopped          # workers have been told to leave
    cdef readonly bint alarmed          # a worker died: wait() returns at once until it is looked after
    cdef int *free                      # payloads nobody uses, a stack
    cdef int frees
    cdef int reserve                    # the first payload never yet used: replacements for those a worker keeps
    cdef dict retired                   # those that workers keep, and which workers
    cdef uint8_t *held_back             # those whose guarded leases have died, until reclaim()
    cdef uint64_t *task_room            # bytes that have pages in each entry's area, for tasks
    cdef int inside                     # threads that may look at the words at any moment
    cdef bint dropped                   # the words are unmapped
    cdef pid_t pid
    cdef object current                 # tells a guarded lease that dies which stream is current; None: none is guarded
    cdef tuple devices                  # on which of these devices
    cdef list returned                  # payloads of guarded leases that died, and what they noted

    def __cinit__(self, mapping, geometry, memfd, spin, int spare, bint in_order):
        cdef int k, working = self.batches + spare
        self.pid, self.retired, self.in_order, self.returned = getpid(), {}, in_order, []
        self.busy = <uint8_t *>calloc(self.entries, 1)
        self.free = <int *>calloc(self.payloads, sizeof(int))
        self.task_room = <uint64_t *>calloc(self.entries, sizeof(uint64_t))
        self.given = <ring_given *>calloc(self.entries, sizeof(ring_given))
        self.held_back = <uint8_t *>calloc(self.payloads, 1)
        if (self.busy == NULL or self.free == NULL or self.task_room == NULL or self.given == NULL
                or self.held_back == NULL):
            raise MemoryError()
        for k in range(working):
            self.free[k] = working - 1 - k      # a stack: the payload freed last is the warmest in the caches
        self.frees, self.reserve = working, working

    def format(self) -> None:
        """Write the header of a fresh segment, before any worker sees it."""
        self.check_open()
        self.header.version = RING_VERSION
        self.header.workers, self.header.entries = self.workers, self.entries
        self.header.payloads, self.header.in_order = self.payloads, self.in_order
        self.header.magic = RING_MAGIC

    def __dealloc__(self):
        free(self.busy)
        free(self.given)
        free(self.free)
        free(self.held_back)
        free(self.task_room)

    # ---------------------------------------------------------------------------------------------- tasks

    @property
    def next_entry(self) -> int:
        """The entry whose area the next open() writes the task to."""
        return self.next_open % self.entries

    def note_task_room(self, int entry, Py_ssize_t bytes) -> None:
        """Say that the first `bytes` of this entry's area have pages now."""
        self.check_entry(entry)
        self.task_room[entry] = bytes

    def task_room_of(self, int entry) -> int:
        """How many bytes of this entry's area are known to have pages."""
        self.check_entry(entry)
        return self.task_room[entry]

    cdef int check_entry(self, int entry) except -1:
        self.check_open()
        if not 0 <= entry < self.entries:
            raise IndexError(f"there is no entry {entry}: this ring's are 0 to {self.entries - 1}")
        return 0

    def has_room(self, int chunks=1) -> bool:
        """Whether a batch of so many chunks can be opened."""
        self.check_open()
        return self.under_way < self.batches and self.in_flight + chunks <= self.entries

    def begin_epoch(self) -> None:
        """Count the batches that are opened from 0 again; none may be under way."""
        self.check_open()
        self.epoch += self.begun
        self.begun, self.opened = True, 0

    def open(self, int worker, task, uint64_t seed=0) -> int:
        """Give the next batch to `worker`, and wake it.

        Args:
            worker: index of the worker that alone may claim it, or ANY.
            task: an index (int), a list of indices (ints of 64 bits), or any task pickled to bytes.
            seed: of the batch.

        Returns:
            0, or the bytes of the entry's area that are wanting: nothing was opened, commit them and call again.  -1:
            the task is a list or an int that needs pickling.
        """
        return self.open_one(worker, task, seed, 1, 0, 0)

    def open_chunks(self, list workers, list tasks, list counts, uint64_t seed=0) -> None:
        """Give the next batch in chunks to workers, or to ANY; whole, for no signal handler runs in between.

        Args:
            workers: whose each chunk is.
            tasks: as for open(), ready to be written: lists of ints of 64 bits, or bytes, and their areas have pages.
            counts: the rows of each.
            seed: of the batch.
        """
        cdef int k, chunks = len(tasks)
        cdef uint32_t row = 0, rows = sum(counts)
        for k in range(chunks):
            if self.open_one(workers[k], tasks[k], seed, 0 if k else chunks, row, rows):
                raise RuntimeError(f"chunk {k} of a batch was not ready to be written")
            row += counts[k]

    cdef int open_one(self, int worker, task, uint64_t seed, int chunks, uint32_t row, uint32_t rows) except -2:
        """Open a sequence: a batch, or one of its chunks.

        Args:
            chunks: into how many chunks the batch is cut, where this is the first; 0 where it is a further one.
            row, rows: for a chunk, the row that it begins at, and the rows of the whole batch.
        """
        cdef int at = self.next_open % self.entries, payload
        cdef ring_entry *entry = &self.entry[at]
        cdef char *area = self.area(self.next_open)
        cdef uint64_t room = self.task_room[at]
        cdef Py_ssize_t k, n
        cdef object item
        cdef int64_t *indices = <int64_t *>area
        self.check_open()
        if worker != RING_ANY:
            self.check_worker(worker)
        if chunks and not self.has_room(chunks):
            raise RuntimeError(f"the ring has no room for {chunks} more: {self.in_flight} of {self.entries} entries "
                               f"are in flight, for {self.under_way} batches of {self.batches} at most")
        if type(task) is list:
            n = PyList_GET_SIZE(task)
            if n * 8 > <Py_ssize_t>room:
                return n * 8
            try:
                for k in range(n):
                    item = <object>PyList_GET_ITEM(task, k)
                    if not PyLong_CheckExact(item):
                        return -1
                    indices[k] = PyLong_AsLongLong(item)
            except OverflowError:
                return -1
            entry.ask.task_kind, entry.ask.task_size = INDICES, n
        elif type(task) is int:
            if room < 8:
                return 8
            try:
                indices[0] = PyLong_AsLongLong(task)
            except OverflowError:
                return -1
            entry.ask.task_kind, entry.ask.task_size = INDEX, 1
        else:
            n = PyBytes_GET_SIZE(task)
            if n > <Py_ssize_t>room:
                return n
            memcpy(area, PyBytes_AS_STRING(task), n)
            entry.ask.task_kind, entry.ask.task_size = PICKLED, n
        if not chunks:
            payload = self.given[(self.next_open - 1) % self.entries].payload
        elif self.frees:
            self.frees -= 1
            payload = self.free[self.frees]
            self.under_way += 1
        else:   # a payload for each batch under way and `spare` more, at most so many lent: see NOTE [ Slot ring ]
            raise RuntimeError(f"no payload is free: {self.lent} of {self.payloads} are lent")
        entry.ask.payload, entry.ask.seed, entry.ask.row, entry.ask.rows = payload, seed, row, rows
        entry.ask.epoch = self.epoch
        if chunks:
            self.opened += 1
        self.given[at] = ring_given(self.next_open, worker, payload, chunks, row, rows, self.opened - 1)
        self.busy[at] = True
        self.in_flight += 1
        ring_open(entry, self.next_open, worker)
        self.next_open += 1
        self.pass_over()
        if worker == RING_ANY:
            self.ring_one()
        else:
            ring_ring(&self.worker[worker].bell)
        return 0

    cdef void ring_one(self) noexcept nogil:
        """Wake one worker that sleeps; where none does, all bells are rung, and who lies down looks again."""
        cdef int k, worker
        for k in range(self.workers):
            worker = (self.next_bell + k) % self.workers
            if ring_ring(&self.worker[worker].bell):
                self.next_bell = worker + 1
                return

    cdef void pass_over(self) noexcept:
        """Have next_open be a sequence whose entry is free, if one is.  In order, it always is."""
        while self.busy[self.next_open % self.entries] and self.in_flight < self.entries:
            self.next_open += 1

    def dismiss(self, int worker) -> None:
        """Let `worker` leave once nothing more is open for it."""
        self.check_open()
        self.check_worker(worker)
        ring_raise(&self.worker[worker].dismissed)
        ring_ring(&self.worker[worker].bell)

    def stop(self) -> None:
        """End every wait of every worker, now.  Of a closed ring there are none."""
        cdef int k
        if self.closed:
            return
        self.stopped = True
        ring_raise(&self.header.stop)
        for k in range(self.workers):
            ring_toll(&self.worker[k].bell)

    # ------------------------------------------------------------------------------------------- delivery

    cdef bint is_ready(self) noexcept nogil:
        if not self.in_order:
            return self.lowest(RING_READY, RING_ANY, self.busy, &self.next_take)
        cdef uint64_t word, sequence
        cdef int chunks = max(1, self.given[self.next_take % self.entries].chunks)
        while self.seen < chunks:
            sequence = self.next_take + self.seen
            word = ring_load(&self.entry[sequence % self.entries])
            if ring_seq(word) != sequence or ring_state(word) != RING_READY:
                return False
            self.seen += 1
        return True

    def ready(self) -> bool:
        """Whether the next batch can be taken; not while there is an alarm to look after."""
        self.check_open()
        return not self.alarmed and self.is_ready()

    def wait(self, double seconds=-1) -> bool:
        """Wait until the next batch can be taken; false when `seconds` have passed or an alarm was raised.

        Spins where that cannot hold up a worker, then sleeps on the ready bell, without the GIL.  Python's signal
        handlers run between sleeps, so Ctrl-C and the SIGCHLD handler work while a batch is late.
        """
        if self.closed or self.alarmed:
            return False
        if self.is_ready():
            return True
        self.inside += 1
        try:
            return self.wait_until(seconds)
        finally:
            self.inside -= 1
            self.drop_words()

    cdef int wait_until(self, double seconds) except -1:
        cdef timespec deadline
        cdef bint limited = until(seconds, &deadline)
        cdef int error = 0, lost = 0, k = 0, budget = spin_budget(&self.spin)
        cdef uint32_t seen
        if budget:
            with nogil:
                while k < budget and not self.is_ready() and spin_once(&self.spin):
                    k += 1
            spin_learn(&self.spin, k, self.is_ready())
        while not self.closed and not self.is_ready():
            if self.alarmed or error == ETIMEDOUT:
                return False
            with nogil:
                seen = ring_announce(&self.header.ready_bell)
                error = 0
                lost = self.lost()
                if not self.is_ready() and not self.alarmed and not lost:
                    error = ring_sleep(&self.header.ready_bell, seen, &deadline if limited else NULL)
            if lost and not self.alarmed and not self.closed:
                raise overwritten(
                    f"the word of sequence {self.given[lost - 1].sequence}",
                    f"{ring_load(&self.entry[lost - 1]):#x}",
                    "one of any worker's" if self.given[lost - 1].worker == RING_ANY else
                    f"one of worker {self.given[lost - 1].worker}'s",
                )
            if error == EINTR:
                PyErr_CheckSignals()
        return not self.closed

    cdef int lost(self) noexcept nogil:
        """The entry, plus 1, that no worker will ever publish, because its word was overwritten; else 0."""
        cdef uint64_t word
        cdef int k
        for k in range(self.entries):
            if not self.busy[k] or self.in_order and self.given[k].sequence != self.next_take + self.seen:
                continue
            word = ring_load(&self.entry[k])
            if (ring_seq(word) != self.given[k].sequence or not self.may_own(k, word)
                    or not RING_OPEN <= ring_state(word) <= RING_READY):
                return k + 1
        return 0

    cdef bint may_own(self, int k, uint64_t word) noexcept nogil:
        """Whether a word may name the owner that it names."""
        cdef uint32_t worker = self.given[k].worker
        return ring_owner(word) == worker or (
            worker == RING_ANY and ring_state(word) != RING_OPEN and ring_owner(word) < <uint32_t>self.workers)

    def alarm(self) -> None:
        """Make wait() return.  From the thread that watches the workers, when one has died.

        Nobody waits on a closed ring, and nothing is to be looked after there.
        """
        if self.closed:
            return
        self.alarmed = True
        ring_toll(&self.header.ready_bell)

    def clear_alarm(self) -> None:
        """The alarm was looked after."""
        if not self.closed:
            self.alarmed = False

    def take(self) -> Lease:
        """Take the next batch, which is ready; its payload is the caller's for as long as the lease lives.

        What its workers said of it is read before the next open(), which may be of the same entries.
        """
        self.check_open()
        if not self.is_ready():
            raise RuntimeError(f"sequence {self.next_take} is not ready")
        cdef ring_given *given = &self.given[self.next_take % self.entries]
        cdef int payload = given.payload, chunks = given.chunks, k
        cdef Lease lease = Lease.__new__(Lease)
        if not self.busy[self.next_take % self.entries] or given.sequence != self.next_take:
            raise overwritten("the number of a sequence", self.next_take, f"{given.sequence}")
        self.follow(payload)
        lease.hold(self, payload, self.next_take, chunks, given.rows)
        self.lent += 1
        self.taken = self.next_take
        for k in range(chunks):
            self.busy[(self.taken + k) % self.entries] = False
        self.in_flight -= chunks
        self.under_way -= 1
        self.next_take += chunks
        self.seen = 0
        self.pass_over()
        return lease

    def lend(self) -> Lease:
        """The next batch, taken once and given again until took(): a signal handler may raise while it is read."""
        if self.unread is None:
            self.unread = self.take()
        return self.unread

    def took(self) -> None:
        """The batch that lend() gave was read: what is left of it is its tensors' affair."""
        cdef Lease lease = self.unread
        if lease is None:
            return
        self.unread = None
        if lease.outcome == KEPT:
            self.replace(lease)
        elif lease.failed:
            lease.release()

    def replace(self, Lease lease) -> None:
        """Do not use this lease's payload while a worker lives who keeps it.  One of the reserve takes its place.

        When the ring is closed no worker lives any more, and the payload is given back.
        """
        cdef int k
        if self.closed or lease.payload < 0:
            lease.release()
            return
        if self.reserve < self.payloads:
            self.free[self.frees] = self.reserve
            self.frees += 1
            self.reserve += 1
        self.retired[lease.payload] = {
            lease.answers[k].owner for k in range(lease.chunks) if lease.answers[k].outcome == KEPT
        }
        lease.payload = -1
        self.lent -= 1

    # ---------------------------------------------------------------------------------------------- deaths

    def holds(self, int worker) -> list[int]:
        """The sequences that `worker` has claimed and not published, lowest first."""
        return self.of(worker, RING_CLAIMED)

    def owes(self, int worker) -> list[int]:
        """The sequences that nobody but `worker` will publish, and that it has not, lowest first."""
        return sorted(self.of(worker, RING_CLAIMED) + self.of(worker, RING_OPEN))

    cdef list of(self, int worker, uint32_t state):
        cdef uint64_t word
        cdef int k, owner = 0
        cdef list found = []
        self.check_open()
        self.check_worker(worker)
        for k in range(self.entries):
            word = ring_load(&self.entry[k])
            if self.busy[k] and ring_state(word) == state and self.owned(k, word, &owner) and owner == worker:
                found.append(self.given[k].sequence)
        return sorted(found)

    cdef bint owned(self, int k, uint64_t word, int *owner) noexcept nogil:
        """Whether an entry in use has an owner, and who: the worker that it is for; where work is stolen, that has
        claimed it.  What is open for anybody has none, and no number stands for that."""
        if self.given[k].worker != RING_ANY:
            owner[0] = self.given[k].worker
            return True
        if ring_state(word) == RING_OPEN or ring_owner(word) >= <uint32_t>self.workers:
            return False
        owner[0] = ring_owner(word)
        return True

    cdef int entry_of(self, uint64_t sequence) except -1:
        """The entry of a sequence that is in flight; what is asked of another one is not answered with this one's."""
        cdef int k = sequence % self.entries
        self.check_open()
        if not self.busy[k] or self.given[k].sequence != sequence:
            raise ValueError(f"sequence {sequence} is not in flight: it was taken, or it was not opened yet")
        return k

    def awaited(self) -> list[int]:
        """The sequences in flight that hold up the next batch, while it is not ready.

        In order that is the first one of it that is not ready; else all that are not ready, lowest first.
        """
        cdef uint64_t word
        cdef int k
        self.check_open()
        if not self.in_flight or self.is_ready():
            return []
        if self.in_order:
            return [self.next_take + self.seen]
        return sorted([self.given[k].sequence for k in range(self.entries) if self.busy[k]])

    def owner(self, uint64_t sequence):
        """The worker that this sequence, which is in flight, is for, or that has claimed it; None: nobody yet."""
        cdef int k = self.entry_of(sequence), owner = 0
        return owner if self.owned(k, ring_load(&self.entry[k]), &owner) else None

    def about(self, uint64_t sequence) -> tuple[int, int, int]:
        """Of a sequence that is in flight: its batch, its first row, and the batch's rows (0: all of it)."""
        cdef ring_given *given = &self.given[self.entry_of(sequence)]
        return given.batch, given.row, given.rows

    def task(self, uint64_t sequence):
        """What open() was given for a sequence that is in flight: an index, a list of indices, or bytes."""
        cdef uint32_t kind = 0
        cdef uint64_t size = 0
        self.entry_of(sequence)
        self.measure(sequence, &kind, &size)
        return self.read_task(sequence, kind, size)

    def held_for(self, uint64_t sequence) -> float:
        """Seconds since this sequence, which is in flight, was claimed; of use only while it is."""
        cdef uint64_t claimed = ring_claimed_at(&self.entry[self.entry_of(sequence)]), time = now()
        return (time - claimed) / 1e9 if claimed < time else 0.0

    def revoke(self, int worker) -> None:
        """Open again what `worker` had claimed.  It is dead and reaped; see NOTE [ Slot ring ]."""
        cdef uint64_t sequence
        cdef int k
        for sequence in self.holds(worker):
            ring_revoke(&self.entry[sequence % self.entries], sequence, worker,
                        self.given[sequence % self.entries].worker)
        ring_note_revoked(self.header)
        for k in range(self.workers):
            ring_toll(&self.worker[k].bell)
        for sequence in self.of(worker, RING_READY):
            if ring_once_32(&self.entry[sequence % self.entries].answer.outcome) == KEPT:
                self.entry[sequence % self.entries].answer.outcome = FILLED  # who kept it is gone
        for kept, keepers in list(self.retired.items()):
            keepers.discard(worker)
            if not keepers:
                del self.retired[kept]
                self.free[self.frees] = kept
                self.frees += 1

    cdef void give_back(self, int payload) noexcept:
        """The lease of `payload` has died, in whatever thread; the GIL is held.  See NOTE [ Lease ]."""
        self.lent -= 1
        if not self.closed:
            self.free[self.frees] = payload
            self.frees += 1
        else:
            if self.pid == getpid():
                madvise(self.slot(payload), self.slot_stride, MADV_REMOVE)
            self.mapping.drop(self.slot(payload) - self.base, self.slot_stride)

    # ------------------------------------------------------------------------------------------------ guarding

    def guard_with(self, current, tuple devices) -> None:
        """Let leases be guarded; see NOTE [ Pinning ] in pinning.py.

        Args:
            current: called where a guarded lease dies, in whatever thread, the GIL held, once for each device.  What
                it returns is noted.  It may make no call to the device, wait for nothing and take no lock.
            devices: what it is called with.
        """
        self.check_open()
        self.current, self.devices = current, devices

    cdef void hold_back(self, int payload) noexcept:
        """The guarded lease of `payload` has died: it counts as lent until reclaim()."""
        cdef object noted = None            # nobody knows: then all streams count
        if self.pid != getpid():            # a forked child copies nothing to a device
            return
        try:
            noted = [self.current(device) for device in self.devices]
        except BaseException:
            pass
        self.held_back[payload] = True
        self.returned.append((payload, noted))

    def returns(self) -> list[tuple[int, object]]:
        """The payloads whose guarded leases have died since this was last asked, and what was noted then."""
        cdef list fresh = []                # first: the collector may run here, and have a lease die
        cdef list found = self.returned
        self.returned = fresh
        return found

    @property
    def has_returns(self) -> bool:
        """Whether returns() has something to tell."""
        return len(self.returned) > 0

    def reclaim(self, int payload) -> None:
        """Nothing reads this payload any more, whose guarded lease has died: it is free, also where the ring is closed.
        """
        self.check_payload(payload)
        if not self.held_back[payload]:
            raise ValueError(f"payload {payload} is not held back: no guarded lease of it has died since it was lent")
        self.held_back[payload] = False
        self.give_back(payload)

    def slot_address(self, int payload) -> int:
        """Where this payload starts in this process's memory; while it is lent, also where the ring is closed."""
        self.check_payload(payload)
        return <uint64_t>self.slot(payload)

    def lent_payloads(self) -> set[int]:
        """The payloads that leases hold, and those of guarded leases that were not reclaimed."""
        self.check_open()
        return self.now_lent()

    cdef set now_lent(self):
        cdef set lent = set(range(self.payloads)) - {self.free[k] for k in range(self.frees)}
        cdef int k
        lent -= set(self.retired).union(range(self.reserve, self.payloads))
        for k in range(self.entries):
            if self.busy[k]:
                lent.discard(self.given[k].payload)
        return lent

    def under_way_of(self, int worker) -> int:
        """How many sequences in flight are for this worker."""
        cdef int k, count = 0
        for k in range(self.entries):
            count += self.busy[k] and self.given[k].worker == worker
        return count

    def close(self) -> None:
        """Give all memory back but what is lent; that follows, payload by payload, as the leases die.

        The pages go at once even where a process that was forked meanwhile still maps them.  A forked child that
        closes its copy of the ring only unmaps it.
        """
        if self.closed:
            return
        self.unread = None
        self.closed = True
        cdef set lent = self.now_lent()                         # the workers are gone, nobody fills the others
        cdef int k
        if self.pid == getpid():
            madvise(self.base, self.slot_at, MADV_REMOVE)
        for k in range(self.payloads):
            if k not in lent:
                if self.pid == getpid():
                    madvise(self.slot(k), self.slot_stride, MADV_REMOVE)
                if lent:
                    self.mapping.drop(self.slot(k) - self.base, self.slot_stride)
        if lent:
            self.mapping.whole = False
            self.drop_words()

    cdef void drop_words(self) noexcept:
        """Unmap the words of a closed ring of which something is lent, once no thread is inside any more: one that is
        may be about to look at them once more."""
        if self.closed and not self.mapping.whole and not self.inside and not self.dropped:
            self.dropped = True
            self.mapping.drop(0, self.slot_at)


END = object()      # Conductor.next(): the epoch is at its end
NOTHING = object()  # in place of a batch: its worker has nothing more to give
cdef object end = END, nothing = NOTHING


@cython.final
cdef class Conductor:
    """The step from one batch to the next, which no signal and no other thread can fall into.

    NOTE [ One step ]

        1. A signal handler may raise (Ctrl-C: KeyboardInterrupt) between any two lines of Python, but not in here, save
           where Python is called.  So what is under way is kept in here: the index that was drawn and is not opened,
           the batch that was taken and is not handed out.  The next call goes on from there, and no batch is lost but
           one that next() had given already.
        2. What can be lost is the sampler's place, if the handler raised in the sampler: a generator ends by that.  Then
           the indices are drawn anew up to there, or it is said that they cannot be (draws.py).
        3. Two threads may call next() of one iterator.  One of them is in here, the others wait until it has left, on a
           lock that nobody touches otherwise.  The GIL makes looking at `occupied` and setting it one step.
        4. The thread that is in here may come by again: from a signal handler, or from a sampler that iterates over its
           own loader.  That can only be an error.

    Args:
        ring: the trainer's side.
        most: batches that may be under way.
    """
    cdef TrainerSide ring
    cdef public int most
    cdef object indices                 # the sampler's iterator
    cdef object drawn                   # an index that is not opened yet
    cdef object ready                   # a batch that is not handed out yet
    cdef bint adrift                    # a handler raised while the sampler was asked
    cdef bint occupied
    cdef unsigned long occupant         # the thread
    cdef int queued                     # threads that wait for their turn
    cdef object turn

    def __cinit__(self, TrainerSide ring, int most):
        self.ring, self.most = ring, most
        self.drawn = self.ready = nothing
        self.turn = _thread.allocate_lock()
        self.turn.acquire()

    cdef int enter(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.occupied:
            if self.occupant == me:
                raise RuntimeError("next() was called while this thread is in next() of the same iterator: from a "
                                   "signal handler, or from a sampler that iterates over its own DataLoader")
            self.queued += 1
            try:
                while self.occupied:
                    self.turn.acquire()
            finally:
                self.queued -= 1
        self.occupied, self.occupant = True, me
        self.ring.inside += 1
        return 0

    cdef int leave(self) except -1:
        self.occupied = False
        self.ring.inside -= 1
        self.ring.drop_words()
        if self.queued and self.turn.locked():
            self.turn.release()
        return 0

    def next(self, iterator):
        """The next batch, or the ExceptionWrapper in its place; END at the end of the epoch.

        Args:
            iterator: what knows the rest.  Called are its
                _await(): wait until the ring has the next batch ready; StopIteration: the iterator was ended.
                _read(): the batch of the ring's lend().
                _worker_ended(worker): the worker has nothing more to give in this epoch, which _read() told by NOTHING.
                _open(index): give the index to workers; false while there is no room.
                _draw_again(count): an iterator over the sampler's indices behind the first `count`.
        """
        self.enter()
        try:
            if self.ready is nothing and not self.fetch(iterator):
                return end
            self.refill(iterator)
            ready = self.ready
            self.ready = nothing
            return ready
        finally:
            self.leave()

    cdef bint fetch(self, iterator) except -1:
        cdef TrainerSide ring = self.ring
        cdef object batch
        while not ring.closed and (ring.in_flight or ring.unread is not None):
            if ring.unread is None and (ring.alarmed or not ring.is_ready()):
                iterator._await()
                continue
            batch = iterator._read()
            if batch is nothing:
                iterator._worker_ended(ring.unread.owner)
                ring.took()
                self.refill(iterator)
                continue
            self.ready = batch
            ring.took()
            return True
        return False

    def begin(self, iterator, indices) -> None:
        """Open an epoch's first batches.  None of the one before may be under way."""
        self.enter()
        try:
            self.indices, self.adrift = indices, False
            self.drawn = self.ready = nothing
            self.refill(iterator)
        finally:
            self.leave()

    def drain(self, iterator) -> None:
        """Wait for all that is under way, and drop it: the epoch was left before its end."""
        cdef TrainerSide ring = self.ring
        self.enter()
        try:
            self.ready = nothing
            ring.took()
            while ring.in_flight:
                if ring.alarmed or not ring.is_ready():
                    iterator._await()
                else:
                    ring.lend()
                    ring.took()
        finally:
            self.leave()

    cdef int refill(self, iterator) except -1:
        """Open batches for as long as there is room."""
        cdef TrainerSide ring = self.ring
        cdef uint64_t before
        while ring.under_way < self.most and not ring.closed:
            if self.drawn is nothing:
                self.drawn = self.draw(iterator)
                if self.drawn is nothing:
                    return 0
            before = ring.opened
            try:
                if not iterator._open(self.drawn):
                    return 0
            except Exception:
                self.drawn = nothing    # it is told what was wrong with it; the next one may be better
                raise
            finally:
                if ring.opened != before:
                    self.drawn = nothing
        return 0

    cdef object draw(self, iterator):
        """The sampler's next index; NOTHING where it has no more."""
        if self.adrift:
            self.indices = iterator._draw_again(self.ring.opened)
            self.adrift = False
        try:
            return next(self.indices)
        except StopIteration:
            return nothing
        except Exception:
            self.ready = nothing        # as in torch: what the sampler raises comes in place of this batch
            raise
        except BaseException:
            self.adrift = True
            raise


cdef struct ring_said:                  # of one sequence, by the worker that published it; each word read once
    uint64_t used, meta_at, meta_size, plan_at, plan_size, objects_at, objects_size
    uint32_t outcome, row
    int owner
    char *area


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class Lease:
    """The bytes of one delivered batch, exported as a buffer.  See NOTE [ Lease ] in delivery.py.

    Every tensor and array over the payload keeps the lease alive; when the last one dies the payload is free again.
    """
    cdef TrainerSide ring
    cdef readonly int chunks            # sequences that made it
    cdef readonly int rows              # of the batch, where it was made in chunks; else 0
    cdef readonly int payload
    cdef bint guarded                   # a copy to a device may outlive it
    cdef bint failed                    # it could not be read
    cdef char *data
    cdef Py_ssize_t bytes
    cdef uint64_t used, room            # bytes that workers say they have written, and that they can have written
    cdef ring_said whole                # what was said of a batch that is one sequence
    cdef ring_said *answers             # that, or one for each chunk

    cdef int hold(self, TrainerSide ring, int payload, uint64_t sequence, int chunks, uint32_t rows) except -1:
        cdef ring_said *said
        cdef ring_answer *answer
        cdef uint64_t word
        cdef int k, at
        self.answers = &self.whole
        self.payload = -1               # until nothing below can fail
        if chunks > 1:
            self.answers = <ring_said *>calloc(chunks, sizeof(ring_said))
            if self.answers == NULL:
                raise MemoryError()
        for k in range(chunks):
            at = (sequence + k) % ring.entries
            answer = &ring.entry[at].answer
            said = &self.answers[k]
            said.used, said.outcome = ring_once(&answer.used), ring_once_32(&answer.outcome)
            said.meta_at, said.meta_size = ring_once(&answer.meta_at), ring_once(&answer.meta_size)
            said.plan_at, said.plan_size = ring_once(&answer.plan_at), ring_once(&answer.plan_size)
            said.objects_at, said.objects_size = ring_once(&answer.objects_at), ring_once(&answer.objects_size)
            word = ring_load(&ring.entry[at])
            if not ring.owned(at, word, &said.owner):
                raise overwritten("the worker that made a batch", ring_owner(word), ring.workers - 1)
            said.row, said.area = ring.given[at].row, ring.area(sequence + k)
            self.used = max(self.used, said.used)
        self.ring, self.payload, self.chunks, self.rows = ring, payload, chunks, rows
        self.data = ring.slot(payload)
        self.room = ring.pages_of(payload)
        self.bytes = self.used if self.used <= self.room else 0     # meta() says so
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.bytes, 0, flags)

    def __dealloc__(self):
        # Any thread, at any time, also while the interpreter goes down: no Python call, no lock, no wait.  A guarded
        # one makes the one call that guard_with() allows.
        if self.chunks > 1:
            free(self.answers)
        if self.ring is not None and self.payload >= 0:
            if self.guarded:
                self.ring.hold_back(self.payload)
            else:
                self.ring.give_back(self.payload)

    def guard(self, Py_ssize_t locked) -> bool:
        """Have its death only noted, if all of the batch lies in the first `locked` bytes of its payload.

        The payload is free when it is reclaimed, and counts as lent until then.
        """
        if self.bytes > locked or self.used > self.room:
            return False
        self.guarded = True
        return True

    def fail(self) -> None:
        """The batch cannot be read: took() frees its payload, though the exception's frames may still be over it."""
        self.failed = True

    def release(self) -> None:
        """Free the payload now, though somebody may still be over it."""
        if self.payload >= 0:
            self.ring.give_back(self.payload)
            self.payload = -1

    @property
    def owner(self) -> int:
        """The worker that made it; of chunks, the first one's."""
        return self.answers[0].owner

    @property
    def outcome(self) -> int:
        """FILLED, KEPT (to be copied) or SKIPPED (it holds nothing)."""
        cdef int k
        for k in range(self.chunks):
            if self.answers[k].outcome == KEPT:
                return KEPT
        return self.answers[0].outcome

    @property
    def overflowed(self) -> bool:
        """Whether its pages are in the memfd."""
        return self.ring.overflowed(self.payload)

    cdef ring_said *said(self, int chunk) except NULL:
        """What was said of a chunk, whose area is about to be read."""
        self.ring.check_open()
        if not 0 <= chunk < self.chunks:
            raise IndexError(f"there is no chunk {chunk}: this batch's are 0 to {self.chunks - 1}")
        return &self.answers[chunk]

    def meta(self, int chunk=0) -> bytes:
        """The description of its leaves, as WorkerSide.describe() got it.

        Raises:
            RuntimeError: the worker cannot have written what is in the entry's words.
        """
        cdef ring_said *said = self.said(chunk)
        if said.outcome > 1:
            raise overwritten("a batch's outcome", said.outcome, KEPT)
        if self.used > self.room:
            raise overwritten("a batch's size", self.used, self.room)
        check("a batch's description", said.meta_at, said.meta_size, self.ring.area_stride)
        return PyBytes_FromStringAndSize(said.area + said.meta_at, said.meta_size)

    def plan(self, int chunk=0) -> bytes:
        """The pickled plan, as WorkerSide.describe() got it; before the next open()."""
        cdef ring_said *said = self.said(chunk)
        check("a batch's plan", said.plan_at, said.plan_size, self.ring.area_stride)
        return PyBytes_FromStringAndSize(said.area + said.plan_at, said.plan_size)

    def objects(self, uint64_t leaves_end) -> tuple[int, int]:
        """Where the table of its pickled leaves lies: offset and size in bytes; size 0 where there are none.

        Args:
            leaves_end: where the last of the other leaves ends, which is checked too.
        """
        check("a batch's leaves", 0, leaves_end, self.bytes)
        if self.whole.objects_size:
            check("the table of a batch's pickled leaves", self.whole.objects_at, self.whole.objects_size, self.bytes)
        return self.whole.objects_at, self.whole.objects_size

    def first_row(self, int chunk) -> int:
        """Which row of the batch a chunk begins at."""
        return self.said(chunk).row

    def chunk_objects(self, int chunk, uint64_t leaves_end) -> bytes:
        """The pickled leaves of a chunk, which lie behind its plan; empty where there are none."""
        cdef ring_said *said = self.said(chunk)
        check("a batch's leaves", 0, leaves_end, self.bytes)
        check("a chunk's pickled leaves", said.objects_at, said.objects_size, self.ring.area_stride)
        return PyBytes_FromStringAndSize(said.area + said.objects_at, said.objects_size)


cdef inline int check(str what, uint64_t at, uint64_t size, uint64_t room) except -1:
    if size > room or at > room - size:
        raise overwritten(f"the place of {what}", f"{at}, of {size} bytes", f"in {room} bytes")
    return 0


@cython.final
cdef class WorkerSide(Ring):
    """What one worker does: claims the sequences that are its own, fills their payloads, publishes them.

    Args:
        me: its index.
        life: how many processes were this ring's workers before this one.
        first: a sequence below which all are done.
    """
    cdef readonly int me, life
    cdef readonly int current           # the payload being filled; -1 between tasks
    cdef readonly Py_ssize_t used       # bytes of it allocated so far
    cdef readonly uint32_t row, rows    # of the chunk being filled: its first row, and the batch's; 0: a whole batch
    cdef uint64_t cursor                # the lowest sequence not yet passed
    cdef uint32_t who                   # whom the sequence that look() found is open for: this worker, or ANY
    cdef uint32_t revocations           # as counted when this worker looked last
    cdef bint in_order                  # whether it walks, or looks through all entries
    cdef uint64_t task_bytes            # of the task that is claimed, in the entry's area
    cdef uint64_t *room                 # bytes that are known here to have pages in each entry's area
    cdef uint8_t *mapped                # for each AROUND of the ring, whether map_written() has been there
    cdef Fill fill

    def __cinit__(self, mapping, geometry, memfd, spin, int me, int life, uint64_t first):
        cdef uint64_t magic = ring_once(&self.header.magic)
        cdef uint32_t version = ring_once_32(&self.header.version)
        self.me, self.life, self.current, self.cursor = me, life, -1, first
        self.check_worker(me)
        if magic != RING_MAGIC or version != RING_VERSION:
            raise RuntimeError(f"this is not a ring of version {RING_VERSION}: magic {magic:#x}, version {version}; "
                               "trainer and worker must run the same shmloader")
        self.in_order = ring_once_32(&self.header.in_order) != 0
        self.room = <uint64_t *>calloc(self.entries, sizeof(uint64_t))
        self.mapped = <uint8_t *>calloc(self.mapping.size // AROUND + 2, 1)     # a page of it for each 256 MiB used
        if self.room == NULL or self.mapped == NULL:
            raise MemoryError()
        cdef int k
        for k in range(self.entries):
            self.room[k] = geometry.area_commit

    def __dealloc__(self):
        free(self.room)
        free(self.mapped)

    # ---------------------------------------------------------------------------------------------- tasks

    cdef bint look(self) noexcept nogil:
        """Walk to the next sequence that this worker may claim; false where that one is not open yet."""
        cdef uint64_t word
        cdef uint32_t revocations
        if not self.in_order:
            self.who = self.me
            return self.lowest(RING_OPEN, self.me, NULL, &self.cursor)
        revocations = ring_revocations(self.header)
        if revocations != self.revocations:     # what was claimed when it was passed over may be open again
            self.revocations = revocations
            self.cursor -= min(self.cursor, <uint64_t>self.entries)
        while True:
            word = ring_load(&self.entry[self.cursor % self.entries])
            if ring_seq(word) < self.cursor or ring_state(word) == RING_VOID:
                return False
            if ring_seq(word) == self.cursor and ring_state(word) == RING_OPEN:
                self.who = ring_owner(word)
                if self.who == <uint32_t>self.me or self.who == RING_ANY:
                    return True
            self.cursor += 1

    cdef bint over(self) noexcept nogil:
        return ring_raised(&self.header.stop) or ring_raised(&self.worker[self.me].dismissed)

    def claim(self):
        """Wait for this worker's next sequence and claim it.

        Returns:
            Its task: an index, a list of indices, or bytes (a pickled task); None when it is time to leave.  Then
            `sequence` is claimed and `current` is the payload to fill.
        """
        cdef uint32_t seen
        cdef bint leaving
        cdef bint found = self.look()
        cdef int error, k = 0, budget = 0 if found else spin_budget(&self.spin)
        if budget:
            with nogil:
                while k < budget and not found and not self.over() and spin_once(&self.spin):
                    k += 1
                    found = self.look()
            spin_learn(&self.spin, k, found)
        while True:
            if ring_raised(&self.header.stop):
                return None
            leaving = ring_raised(&self.worker[self.me].dismissed)  # before the look: it sees all opened before that
            if self.look():
                if ring_claim(&self.entry[self.cursor % self.entries], self.cursor, self.who, self.me):
                    break
                continue    # another one was quicker
            if leaving:
                return None
            with nogil:
                seen = ring_announce(&self.worker[self.me].bell)
                RING_STEP(AFTER_ANNOUNCE)
                error = 0
                if not self.look() and not self.over():
                    error = ring_sleep(&self.worker[self.me].bell, seen, NULL)
                ring_rise(&self.worker[self.me].bell)
            if error == EINTR:
                PyErr_CheckSignals()
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        ring_note_claimed(entry, now())
        RING_STEP(AFTER_CLAIM)
        cdef uint32_t kind = 0, payload = ring_once_32(&entry.ask.payload)
        cdef uint64_t size = 0, pages
        if payload >= <uint32_t>self.payloads:
            raise overwritten("a task's payload", payload, self.payloads - 1)
        pages = ring_committed(&self.payload[payload])
        if pages > <uint64_t>self.slot_stride:
            raise overwritten("a payload's size", pages, self.slot_stride)
        self.measure(self.cursor, &kind, &size)
        self.task_bytes = size if kind == PICKLED else 8 * size
        self.current, self.used = payload, 0
        self.row, self.rows = ring_once_32(&entry.ask.row), ring_once_32(&entry.ask.rows)
        self.follow(self.current)
        return self.read_task(self.cursor, kind, size)

    @property
    def seed(self) -> int:
        """The seed of the batch that is claimed."""
        return ring_once(&self.entry[self.cursor % self.entries].ask.seed)

    @property
    def epoch(self) -> int:
        """The epoch of the batch that is claimed."""
        return ring_once(&self.entry[self.cursor % self.entries].ask.epoch)

    @property
    def sequence(self) -> int:
        """The sequence that is claimed."""
        return self.cursor

    # -------------------------------------------------------------------------------------------- filling

    cdef int check_claimed(self) except -1:
        """Between tasks there is no payload to touch: `current` is no index then."""
        if self.current < 0:
            raise RuntimeError("no sequence is claimed, so there is no payload to write to")
        return 0

    def allocate(self, Py_ssize_t bytes) -> int:
        """Set bytes of the current payload aside; their offset in it, or -1 where too few have pages."""
        cdef Py_ssize_t at = (self.used + ALIGN - 1) // ALIGN * ALIGN, pages
        self.check_claimed()
        if bytes < 0:
            raise ValueError(f"{bytes} bytes cannot be set aside")
        pages = self.pages_of(self.current)
        if bytes > pages - at:
            return -1
        RING_STEP(WHILE_FILLING)
        self.used = at + bytes
        return at

    def map_written(self, Py_ssize_t at, Py_ssize_t bytes) -> None:
        """Before these bytes of the current payload are written: have the kernel map those of their pages that exist.

        A payload goes from worker to worker, and each has to map its pages for itself.  A write maps one, in 1 us; a
        read maps all AROUND it that were ever written, by whomever.  Those that were not cost the same either way.
        """
        cdef uint64_t first = <uint64_t>self.base // AROUND, address, end
        self.check_inside(at, bytes)
        address = <uint64_t>self.slot(self.current) + at
        end = address + bytes
        with nogil:
            while address < end:
                if not self.mapped[address // AROUND - first]:
                    self.mapped[address // AROUND - first] = True
                    ring_peek(<char *>address)
                address = (address // AROUND + 1) * AROUND

    def rewind(self) -> None:
        """Forget what was allocated: the batch failed, and its exception goes into the payload instead."""
        self.used = 0

    def buffer(self) -> Fill:
        """The current payload as a buffer, for tensors over it.  One object until publish()."""
        self.check_claimed()
        if self.fill is None:
            self.fill = Fill.__new__(Fill)
            self.fill.ring, self.fill.data, self.fill.bytes = self, self.slot(self.current), self.slot_stride
        return self.fill

    def offset_of(self, uint64_t address, Py_ssize_t bytes) -> int:
        """Where in what is allocated of the current payload these bytes lie; -1 where they lie elsewhere."""
        cdef uint64_t start = <uint64_t>self.slot(self.current), used = self.used
        self.check_claimed()
        if start <= address <= start + used and <uint64_t>bytes <= start + used - address:
            return address - start
        return -1

    def address(self, Py_ssize_t at) -> int:
        """The address of offset `at` of the current payload, in this process."""
        self.check_inside(at, 0)
        return <uint64_t>self.slot(self.current) + at

    cdef int check_inside(self, Py_ssize_t at, Py_ssize_t bytes) except -1:
        """Whether these bytes were allocated."""
        self.check_claimed()
        if not 0 <= at <= self.used or not 0 <= bytes <= self.used - at:
            raise ValueError(f"{bytes} bytes at {at} are not in the {self.used} that are allocated of this payload")
        return 0

    def write(self, Py_ssize_t at, const unsigned char[::1] data) -> None:
        """Copy a buffer to offset `at` of the current payload."""
        self.check_inside(at, data.shape[0])
        if data.shape[0]:
            with nogil:
                memcpy(self.slot(self.current) + at, &data[0], data.shape[0])

    # What a worker says of a batch lies in the entry's area, behind the task, which whoever takes this worker's place
    # may need.

    @property
    def current_entry(self) -> int:
        """The entry of the sequence that is claimed."""
        return self.cursor % self.entries

    def note_room(self, Py_ssize_t bytes) -> None:
        """Say that the first `bytes` of the current entry's area have pages now."""
        self.room[self.cursor % self.entries] = bytes

    def describe(self, list words, bytes plan, bytes beside=b"") -> int:
        """Write the meta and the plan of the batch (layout.pyx), and what a chunk has beside them, into the area.

        Args:
            words: the meta.
            plan: the pickled plan.
            beside: a chunk's pickled leaves.

        Returns:
            0, or the bytes of area that must have pages first.
        """
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        cdef Py_ssize_t k, count = len(words), size = PyBytes_GET_SIZE(plan), more = PyBytes_GET_SIZE(beside)
        # behind the task as it was when it was claimed: it is not asked again how long it is
        cdef uint64_t meta_at = (self.task_bytes + 7) // 8 * 8, plan_at = meta_at + 8 * count
        cdef char *area = self.area(self.cursor)
        cdef int64_t *meta = <int64_t *>(area + meta_at)
        if plan_at + size + more > self.room[self.cursor % self.entries]:
            return plan_at + size + more
        for k in range(count):
            meta[k] = PyLong_AsLongLong(words[k])
        memcpy(area + plan_at, PyBytes_AS_STRING(plan), size)
        memcpy(area + plan_at + size, PyBytes_AS_STRING(beside), more)
        entry.answer.meta_at, entry.answer.meta_size = meta_at, 8 * count
        entry.answer.plan_at, entry.answer.plan_size = plan_at, size
        entry.answer.objects_at, entry.answer.objects_size = plan_at + size, more
        return 0

    def point_to_objects(self, Py_ssize_t at, Py_ssize_t size) -> None:
        """Say where in the payload the table of the batch's pickled leaves lies."""
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        entry.answer.objects_at, entry.answer.objects_size = at, size

    def kept(self) -> bool:
        """Whether tensors over the current payload are still alive in this process."""
        # by the pointer: as an object, Cython would hold a reference of its own while it asks
        return self.fill is not None and (<PyObject *>self.fill).ob_refcnt > 1

    def publish(self, int outcome) -> bool:
        """Hand the current payload to the trainer, and wake it; false where the claim was taken away."""
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        entry.answer.used, entry.answer.outcome = self.used, outcome
        self.current, self.fill = -1, None
        RING_STEP(BEFORE_PUBLISH)
        if not ring_publish(entry, self.cursor, self.me):
            ring_toll(&self.header.ready_bell)      # or the word was overwritten: the trainer is to look at it
            return False
        self.cursor += 1
        RING_STEP(AFTER_PUBLISH)
        ring_ring(&self.header.ready_bell)
        RING_STEP(AFTER_BELL)
        return True

    # ----------------------------------------------------------------------------------- what outlives a worker

    cdef ring_memory *left(self) noexcept nogil:
        """The half that was left at the end of the last sequence that this worker has published; NULL: neither.

        What was left at the end of the sequence that is claimed is void, for it was not published: whoever left it died.
        """
        cdef ring_memory *memory
        cdef ring_memory *found = NULL
        cdef uint64_t after, latest = 0
        cdef int half
        for half in range(2):
            memory = self.memory(self.me, half)
            after = ring_remembered(memory)
            if latest < after <= self.cursor:
                latest, found = after, memory
        return found

    cdef Py_ssize_t memory_room(self) except -1:
        """Bytes of states that fit into a half."""
        if self.memory_stride < <Py_ssize_t>sizeof(ring_memory):
            raise RuntimeError("this ring was made without memory for what a worker leaves (on_worker_death='respawn')")
        return self.memory_stride - <Py_ssize_t>sizeof(ring_memory)

    def remember(self, bytes states) -> None:
        """Leave `states`, as they are at the end of the sequence that is claimed, before it is published.

        Until it is published, whoever takes this worker's place needs what was left at the end of the one before it;
        so that half stays, however often somebody dies here, and the other one is overwritten.  What is too long is
        not remembered: then whoever comes next begins as this worker was seeded.
        """
        cdef Py_ssize_t room = self.memory_room(), size = PyBytes_GET_SIZE(states)
        cdef ring_memory *memory = self.memory(self.me, 0)
        if memory == self.left():
            memory = self.memory(self.me, 1)
        if size > room:
            size = 0
        ring_forget(memory)
        memcpy(<char *>memory + sizeof(ring_memory), PyBytes_AS_STRING(states), size)
        RING_STEP(WHILE_REMEMBERING)
        memory.size = size
        ring_remember(memory, self.cursor)

    def recall(self):
        """What this worker's predecessor left at the end of the last sequence that it published; None: nothing.

        To be asked when the next sequence is claimed.
        """
        cdef uint64_t size, room = self.memory_room()
        cdef ring_memory *memory = self.left()
        if memory == NULL:
            return None
        size = ring_once(&memory.size)
        if size > room:
            raise overwritten("the size of what a worker remembers", size, room)
        return PyBytes_FromStringAndSize(<char *>memory + sizeof(ring_memory), size) if size else None


@cython.final
@cython.no_gc
cdef class Fill:
    """The payload that a worker is filling, exported as a buffer.  Its reference count says who is over it."""
    cdef WorkerSide ring
    cdef char *data
    cdef Py_ssize_t bytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.bytes, 0, flags)
