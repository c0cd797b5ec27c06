# cython: language_level=3, boundscheck=False, wraparound=False
"""A reader's side of a ring that another process conducts: it waits for batches, and takes each one once, in order.
It refuses a ring of another version of shmloader.  NOTE [ Readers ] in readers.pxd.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from atomics cimport (
    RING_MAGIC, RING_READY, RING_VERSION, ring_announce, ring_due, ring_entry, ring_load, ring_once, ring_once_32,
    ring_owner, ring_payload, ring_ring, ring_seq, ring_sleep, ring_state, ring_take_part, ring_toll, ring_word,
)
from shmloader.core.free_slots cimport Slots
from shmloader.core.lease cimport Lease, answer_copy
from shmloader.core.private_view cimport PrivateView
from shmloader.core.ring cimport SKIPPED, SKIPPED_KEPT, Ring, overwritten
from shmloader.core.sequences cimport Sequences, ring_given
from shmloader.core.turns cimport Meter
from ring.spin cimport spin_budget, spin_learn, spin_once


@cython.final
cdef class AttachedSide(Ring):
    """One reader: takes the batches that it is due for, in order, and lends them.

    Args:
        index: its own, which the conductor has given it.
        cursor: the sequence that it begins with.
        spare: how many batches it may lend.
        meter: counts for how long they are lent.
        view: whether what it writes is its own; otherwise all readers see it.
    """

    def __cinit__(self, segment, spin, int index, uint64_t cursor, int spare, Meter meter not None, bint view=True):
        cdef uint64_t magic = ring_once(&self.header.magic)
        cdef uint32_t version = ring_once_32(&self.header.version)
        if magic != RING_MAGIC or version != RING_VERSION:
            raise RuntimeError(f"this is not a ring of version {RING_VERSION}: magic {magic:#x}, version {version}; "
                               "conductor and readers must run the same shmloader")
        self.bit, self.cursor = <uint32_t>1 << index, cursor
        self.sequences, self.slots = Sequences(self, True), Slots(self, spare, meter)
        self.slots.header, self.slots.words, self.slots.reader = self.header, self.payload, self.bit
        if view:
            self.view = PrivateView(self, segment.fd)
            self.lent_from = self.view.base

    def __dealloc__(self):
        free(self.copied)

    # ------------------------------------------------------------------------------------------------ waiting

    cdef int chunks_at_cursor(self, uint32_t *payload) noexcept nogil:
        """How many sequences the batch at the cursor is, and its payload; 0: they cannot be right, or do not stay so.

        Its first sequence is READY.
        """
        cdef uint32_t chunks
        payload[0] = ring_once_32(&self.entry[self.cursor % self.entries].ask.payload)
        if payload[0] >= <uint32_t>self.payloads:
            return 0
        chunks = ring_once_32(&self.payload[payload[0]].chunks)
        return <int>chunks if 0 < chunks <= <uint32_t>self.entries else 0

    cdef bint find_ready(self) noexcept nogil:
        """Whether the batch at the cursor can be taken, or turns out not to be this reader's (`passed`)."""
        cdef uint64_t word = ring_load(&self.entry[self.cursor % self.entries])
        cdef uint32_t payload = 0
        cdef int k, chunks
        if self.left:
            self.passed = True
            return True
        if ring_seq(word) != self.cursor or ring_state(word) != RING_READY:
            self.passed = ring_seq(word) > self.cursor and ring_state(word) != 0
            return self.passed
        chunks = self.chunks_at_cursor(&payload)
        for k in range(1, chunks):
            word = ring_load(&self.entry[(self.cursor + k) % self.entries])
            if ring_seq(word) != self.cursor + k or ring_state(word) != RING_READY:
                return False
        self.passed = not chunks or not ring_word(&self.payload[payload]) & ring_due(self.bit)
        return True

    def ready(self) -> bool:
        """Whether the next batch can be taken now."""
        return self.find_ready() and not self.passed

    def wait(self) -> bool:
        """Wait until the next batch can be taken: true.  False: an alarm was raised, or this reader is passed by."""
        cdef int k = 0, budget
        cdef uint32_t seen
        if self.find_ready():
            return not self.passed
        budget = spin_budget(&self.spin)
        if budget:
            with nogil:
                while k < budget and not self.find_ready() and spin_once(&self.spin):
                    k += 1
            spin_learn(&self.spin, k, self.find_ready())
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx
        while not self.find_ready():
            if self.alarmed:
                return False
            with nogil:
                seen = ring_announce(&self.header.reader_bell)
                if not self.find_ready() and not self.alarmed:
                    ring_sleep(&self.header.reader_bell, seen, NULL)
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx
        return not self.passed

    @property
    def next_epoch(self) -> int:
        """The epoch of the ring, in its lower 32 bits, that the next batch is of, which is ready."""
        return ring_once_32(&self.entry[self.cursor % self.entries].ask.epoch)

    def await_alarm(self) -> None:
        """Wait until an alarm is raised: this reader is passed by, and the conductor is about to send why."""
        cdef uint32_t seen
        while not self.alarmed:
            with nogil:
                seen = ring_announce(&self.header.reader_bell)
                if not self.alarmed:
                    ring_sleep(&self.header.reader_bell, seen, NULL)
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx

    def alarm(self) -> None:
        """Make wait() return, where nothing is ready.  From the thread that listens to the conductor."""
        self.alarmed = True
        ring_toll(&self.header.reader_bell)

    def clear_alarm(self) -> None:
        """The alarm is about to be looked after."""
        self.alarmed = False

    def leave(self) -> None:
        """Take nothing more.  From here on its index may go to another reader, once what it lends is let go."""
        self.left = True

    # ------------------------------------------------------------------------------------------------ taking

    def lend(self):
        """The next batch, which is ready, taken once and given again until took(); None: it may not take it."""
        cdef uint64_t after = 0
        cdef uint32_t payload = 0
        cdef int chunks
        cdef Lease lease
        if self.unread is not None:
            return self.unread
        if not self.find_ready():
            raise RuntimeError(f"sequence {self.cursor} is not ready")
        chunks = self.chunks_at_cursor(&payload)
        if self.passed or not chunks:
            return None
        try:
            lease = self.read_entries(payload, chunks)
        except Exception:
            if ring_word(&self.payload[payload]) & ring_due(self.bit):
                raise
            return None     # it was dropped, and what was read there is another batch's
        # Another thread may have left while Python was called above.  From here to the CAS nobody else has the GIL.
        if self.left or not ring_take_part(&self.payload[payload], self.bit, &after):
            self.passed = True
            return None
        lease.payload = payload     # from here on its death lets go
        self.slots.lend(payload)
        if not after >> 32:
            ring_ring(&self.header.ready_bell)
        self.unread = lease
        self.cursor += chunks
        if self.view is not None:
            self.view.lend(payload, lease.bytes)
        return lease

    cdef Lease read_entries(self, uint32_t payload, int chunks):
        """Copy what the entries say of the batch; the copy is right if this reader is due for it afterwards."""
        cdef Lease lease = Lease.__new__(Lease)
        cdef ring_given *given
        cdef ring_entry *entry
        cdef int k, at
        for k in range(chunks):
            at = (self.cursor + k) % self.entries
            entry, given = &self.entry[at], &self.sequences.given[at]
            given.sequence, given.payload, given.chunks = self.cursor + k, payload, 0 if k else chunks
            given.then = given.sequence + 1     # without windows a batch's sequences are neighbours
            given.row, given.rows = ring_once_32(&entry.ask.row), ring_once_32(&entry.ask.rows)
            given.worker = ring_owner(ring_load(entry))
            if given.worker >= self.workers:
                raise overwritten("the worker that made a batch", given.worker, self.workers - 1)
            self.sequences.busy[at] = True
        entry = &self.entry[self.cursor % self.entries]
        self.batch, self.epoch = ring_once_32(&entry.ask.batch), ring_once_32(&entry.ask.epoch)
        self.samples = ring_once_32(&self.payload[payload].samples)
        lease.describe(self, self.slots, self.sequences, &self.sequences.given[self.cursor % self.entries])
        self.copy_answers(lease)
        return lease

    cdef int copy_answers(self, Lease lease) except -1:
        """Copy what the workers wrote into the areas, because they may be opened again once the batch is taken."""
        cdef answer_copy *answer
        cdef uint64_t size, total = 0, limit = self.area_stride
        cdef char *bigger
        cdef int k
        for k in range(lease.chunks):
            answer = &lease.answers[k]
            size = answer.meta_size + answer.plan_size + (answer.objects_size if lease.rows else 0) + answer.report_size
            if (answer.meta_size > limit or answer.plan_size > limit or answer.report_size > limit
                    or (lease.rows and answer.objects_size > limit) or size > limit or answer.meta_at > limit - size):
                raise overwritten("the place of a batch's description", answer.meta_at, limit)
            total += size
        if total > self.room:
            bigger = <char *>realloc(self.copied, 2 * total)
            if bigger == NULL:
                raise MemoryError()
            self.copied, self.room = bigger, 2 * total
        total = 0
        for k in range(lease.chunks):
            answer = &lease.answers[k]
            size = answer.meta_size + answer.plan_size + (answer.objects_size if lease.rows else 0) + answer.report_size
            memcpy(self.copied + total, answer.area + answer.meta_at, size)
            answer.area = self.copied + total
            if answer.plan_size and answer.plan_at != answer.meta_at + answer.meta_size:
                raise overwritten("the place of a batch's plan", answer.plan_at, answer.meta_at + answer.meta_size)
            if lease.rows and answer.objects_size and answer.objects_at != answer.plan_at + answer.plan_size:
                raise overwritten("the place of a chunk's pickled leaves", answer.objects_at,
                                  answer.plan_at + answer.plan_size)
            answer.meta_at, answer.plan_at = 0, answer.meta_size
            if lease.rows:
                answer.objects_at = answer.meta_size + answer.plan_size
            total += size
        return 0

    @property
    def is_taken(self) -> bool:
        """Whether lend() has given a batch, and took() was not called yet."""
        return self.unread is not None

    def took(self) -> None:
        """The batch that lend() gave was read: what is left of it is its tensors' affair."""
        cdef Lease lease = self.unread
        self.unread = None
        if lease is not None and lease.failed:
            lease.release()

    def skip(self) -> bool:
        """Drop the next batch, which is ready; false: this reader may not take it."""
        cdef object lease = self.lend()
        self.unread = None
        return lease is not None
