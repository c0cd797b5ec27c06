"""The sequences in flight: which batch the trainer takes next, in order or as they are ready (`in_order=False`).
It knows which worker has each of them, and notices overwritten words.

The trainer keeps what it opened them with, and does not read it back from the ring.
"""

cimport cython

from atomics cimport (
    RING_ANY, RING_CLAIMED, RING_OPEN, RING_READY, ring_load, ring_noted, ring_owner, ring_seq, ring_state,
)
from clock cimport now


@cython.final
cdef class Sequences:
    """The arguments with which each sequence in flight was opened, and its present state.

    In order, sequences are taken along a chain: each names the one after it.  That is the next sequence, unless batches
    were opened in a window: NOTE [ Windows ] in ring.pxd.

    Args:
        ring: whose sequences they are.
        in_order: whether batches are taken in their order, or as they become ready; then none is cut into chunks.
    """

    def __cinit__(self, Ring ring, bint in_order):
        self.mapping, self.entry = ring.mapping, ring.entry
        self.workers, self.entries, self.in_order = ring.workers, ring.entries, in_order
        self.busy = <uint8_t *>calloc(self.entries, 1)
        self.given = <ring_given *>calloc(self.entries, sizeof(ring_given))
        self.listed = [None] * self.entries
        if self.busy == NULL or self.given == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.busy)
        free(self.given)

    cdef void opened(self, int worker, int payload, int chunks, uint32_t row, uint32_t rows, uint64_t batch,
                     uint32_t samples, uint32_t cell, uint64_t time) noexcept:
        """Record what the next sequence is about to be opened with, and advance `next_open`."""
        cdef int at = self.next_open % self.entries
        self.given[at] = ring_given(self.next_open, worker, payload, chunks, row, rows, batch, samples, cell, time, 0)
        self.busy[at] = True
        if self.in_order:
            if self.in_flight:
                self.given[self.last % self.entries].then = self.next_open
            else:
                self.next_take = self.unseen = self.next_open
            self.last = self.next_open
        self.in_flight += 1
        self.next_open += 1
        self.pass_over()

    cdef void take_by(self, const int *order, int count, uint64_t before) noexcept:
        cdef uint64_t first = self.next_open - count, sequence
        cdef int k
        if self.in_flight == count:
            self.next_take = self.unseen = first + order[0]
        else:
            self.given[before % self.entries].then = first + order[0]
        for k in range(count):
            sequence = self.last = first + order[k]
            if k + 1 < count:
                self.given[sequence % self.entries].then = first + order[k + 1]

    cdef void pass_over(self) noexcept:
        """Out of order, advance `next_open` to a sequence whose entry is free, if there is one.

        In order it does nothing: workers walk, and would wait for a sequence that was left out.
        """
        while not self.in_order and self.busy[self.next_open % self.entries] and self.in_flight < self.entries:
            self.next_open += 1

    cdef bint find_ready(self) noexcept nogil:
        if not self.in_order:
            return lowest(self.entry, self.entries, RING_READY, RING_ANY, self.busy, &self.next_take)
        cdef uint64_t word, sequence
        cdef int chunks = max(1, self.given[self.next_take % self.entries].chunks)
        while self.seen < chunks:
            sequence = self.unseen
            word = ring_load(&self.entry[sequence % self.entries])
            if ring_seq(word) != sequence or ring_state(word) != RING_READY:
                return False
            self.unseen = self.given[sequence % self.entries].then
            self.seen += 1
        return True

    cdef ring_given *next_batch(self) except NULL:
        cdef ring_given *given = &self.given[self.next_take % self.entries]
        if not self.busy[self.next_take % self.entries] or given.sequence != self.next_take:
            raise overwritten("the number of a sequence", self.next_take, f"{given.sequence}")
        return given

    cdef void took(self, int chunks) noexcept:
        cdef int k
        for k in range(chunks):
            self.busy[self.next_take % self.entries] = False
            self.next_take = self.given[self.next_take % self.entries].then if self.in_order else self.next_take + 1
        self.in_flight -= chunks
        if self.in_order and not self.in_flight:
            self.next_take = self.next_open
        self.seen, self.unseen = 0, self.next_take
        self.pass_over()

    # --------------------------------------------------------------------------------------- which worker has which

    def holds(self, int worker) -> list[int]:
        """The sequences that this worker has claimed and not published, lowest first."""
        return self.of(worker, RING_CLAIMED)

    def owes(self, int worker) -> list[int]:
        """The unpublished sequences that only this worker can publish, lowest first."""
        return sorted(self.of(worker, RING_CLAIMED) + self.of(worker, RING_OPEN))

    cdef list of(self, int worker, uint32_t state):
        cdef uint64_t word
        cdef int k, owner = 0
        cdef list found = []
        self.mapping.check_open()
        check_index("worker", worker, self.workers)
        for k in range(self.entries):
            word = ring_load(&self.entry[k])
            if self.busy[k] and ring_state(word) == state and self.owned(k, word, &owner) and owner == worker:
                found.append(self.given[k].sequence)
        return sorted(found)

    cdef bint owned(self, int entry, uint64_t word, int *owner) noexcept nogil:
        """Whether an entry in use has an owner, and which worker that is: the one that it was opened for, or, if it was
        opened for ANY, the one that claimed it.  A sequence that is open for ANY has none."""
        if self.given[entry].worker != RING_ANY:
            owner[0] = self.given[entry].worker
            return True
        if ring_state(word) == RING_OPEN or ring_owner(word) >= <uint32_t>self.workers:
            return False
        owner[0] = ring_owner(word)
        return True

    def awaited(self) -> list[int]:
        """The sequences in flight that hold up the next batch, while it is not ready.

        In order, that is its first sequence that is not ready.  Out of order, it is all sequences, lowest first.
        """
        cdef int k
        self.mapping.check_open()
        if not self.in_flight or self.find_ready():
            return []
        if self.in_order:
            return [self.unseen]
        return sorted([self.given[k].sequence for k in range(self.entries) if self.busy[k]])

    @property
    def oldest(self) -> int:
        """The lowest sequence in flight, or the next one: all lower ones are finished."""
        cdef uint64_t oldest = self.next_open
        cdef int k
        for k in range(self.entries):
            if self.busy[k]:
                oldest = min(oldest, self.given[k].sequence)
        return oldest

    def rows_due(self) -> list[int]:
        """For each worker, the rows of the chunks that only it may make and that it has not published."""
        cdef uint64_t word
        cdef int k
        cdef list found = [0] * self.workers
        self.mapping.check_open()
        for k in range(self.entries):
            if self.busy[k] and self.given[k].worker != RING_ANY:
                word = ring_load(&self.entry[k])
                if ring_seq(word) != self.given[k].sequence or ring_state(word) != RING_READY:
                    found[self.given[k].worker] += 1 if self.listed[k] is None else len(self.listed[k])
        return found

    def under_way_of(self, int worker) -> int:
        """How many sequences in flight are for this worker."""
        cdef int k, count = 0
        for k in range(self.entries):
            count += self.busy[k] and self.given[k].worker == worker
        return count

    # ------------------------------------------------------------------------------------------------ one sequence

    cdef int entry_of(self, uint64_t sequence) except -1:
        """The entry of a sequence in flight.  Raises for any other, whose entry may belong to another sequence."""
        cdef int k = sequence % self.entries
        self.mapping.check_open()
        if not self.busy[k] or self.given[k].sequence != sequence:
            raise ValueError(f"sequence {sequence} is not in flight: it was taken, or it was not opened yet")
        return k

    def owner(self, uint64_t sequence):
        """The worker that a sequence in flight was opened for, or that has claimed it; None if there is none yet."""
        cdef int k = self.entry_of(sequence), owner = 0
        return owner if self.owned(k, ring_load(&self.entry[k]), &owner) else None

    def about(self, uint64_t sequence) -> tuple[int, int, int]:
        """For a sequence in flight: its batch, its first row, and the batch's rows (0: it is the whole batch)."""
        cdef ring_given *given = &self.given[self.entry_of(sequence)]
        return given.batch, given.row, given.rows

    def rows_of(self, uint64_t sequence):
        """The rows of its batch that a sequence in flight makes, if its task lists them: NOTE [ Windows ]."""
        return self.listed[self.entry_of(sequence)]

    def held_for(self, uint64_t sequence) -> float:
        """Seconds since a sequence in flight was claimed.  It has a meaning only for a sequence that is CLAIMED."""
        cdef uint64_t claimed = ring_noted(&self.entry[self.entry_of(sequence)].claimed_at), time = now()
        return (time - claimed) / 1e9 if claimed < time else 0.0

    # ------------------------------------------------------------------------------------------------ overwritten words

    cdef int lost(self) noexcept nogil:
        """1 + an entry whose word was overwritten, so that the awaited sequence never comes; 0: there is none.

        In order, it is the awaited sequence's entry.  While no worker has claimed that sequence, it may be any entry:
        a worker that walks all sequences stops at an impossible word.
        """
        cdef int k, awaited = self.unseen % self.entries
        if self.in_order:
            if not self.busy[awaited]:
                return 0
            if self.is_lost(awaited):
                return awaited + 1
            if ring_state(ring_load(&self.entry[awaited])) != RING_OPEN:
                return 0
        for k in range(self.entries):
            if self.busy[k] and self.is_lost(k):
                return k + 1
        return 0

    cdef bint is_lost(self, int k) noexcept nogil:
        cdef uint64_t word = ring_load(&self.entry[k])
        return (ring_seq(word) != self.given[k].sequence or not self.may_own(k, word)
                or not RING_OPEN <= ring_state(word) <= RING_READY)

    cdef bint may_own(self, int entry, uint64_t word) noexcept nogil:
        """Whether the owner in a word is one that the entry may have."""
        cdef uint32_t worker = self.given[entry].worker
        return ring_owner(word) == worker or (
            worker == RING_ANY and ring_state(word) != RING_OPEN and ring_owner(word) < <uint32_t>self.workers)

    cdef object overwritten(self, int entry):
        cdef int worker = self.given[entry].worker
        return overwritten(f"the word of sequence {self.given[entry].sequence}", f"{ring_load(&self.entry[entry]):#x}",
                           "one of any worker's" if worker == RING_ANY else f"one of worker {worker}'s")
