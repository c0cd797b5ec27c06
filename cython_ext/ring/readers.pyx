# cython: language_level=3, boundscheck=False, wraparound=False
"""The other processes that read a ring's batches (MOST_READERS): where each begins, and which hold up the next batch.
NOTE [ Readers ] in readers.pxd.

A slot is free again when no reader owes or holds it: Slots.has_free() in free_slots.pyx.
Host in shmloader/readers/host.py decides when a reader is too slow (drop()) or dead (bury()).
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from atomics cimport (
    ring_add_due, ring_announce, ring_due, ring_mark_due, ring_payload, ring_sleep, ring_strike, ring_toll, ring_word,
)
from shmloader.core.free_slots cimport Slots
from shmloader.core.ring cimport Ring, check_index
from shmloader.core.sequences cimport Sequences, ring_given

MOST_READERS = 32       # bits in a word's halves


cdef bint any_due(ring_payload *payload, int payloads) noexcept nogil:
    """Whether any reader has not taken all that is open."""
    cdef int k
    for k in range(payloads):
        if ring_word(&payload[k]) >> 32:
            return True
    return False


@cython.final
cdef class Readers:
    """The readers of a ring, beside its conductor.

    Args:
        ring: the conductor's side.
        sequences: what it has opened.
        slots: its accounts of the payloads.
        reads: whether the conductor's own process reads the batches too.
    """

    def __cinit__(self, Ring ring, Sequences sequences, Slots slots, bint reads):
        self.sequences, self.slots, self.reads = sequences, slots, reads
        self.header, self.payload = ring.header, ring.payload
        self.payloads, self.entries, self.batches = ring.payloads, ring.entries, ring.batches
        self.opened_for = <uint64_t *>calloc(self.payloads, sizeof(uint64_t))
        self.epoch_of = <uint64_t *>calloc(self.entries, sizeof(uint64_t))
        if self.opened_for == NULL or self.epoch_of == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.opened_for)
        free(self.epoch_of)

    # ----------------------------------------------------------------------------------------------------- room

    cdef void advance(self) noexcept:
        """Move all_took past the sequences that all have taken.  Without readers it stays; a new one gets the rest."""
        cdef ring_given *given
        if not self.live and not self.reads:
            return
        while self.all_took < self.sequences.next_take:
            given = &self.sequences.given[self.all_took % <uint64_t>self.entries]
            if ring_word(&self.payload[given.payload]) >> 32:
                return
            self.all_took += given.chunks
            self.behind -= 1

    cdef bint have_room(self, int chunks, int most) noexcept:
        if not self.live and not self.reads:
            return False
        self.advance()
        return (self.behind < min(most, self.batches) and self.slots.has_free()
                and self.sequences.next_open + chunks - self.all_took <= <uint64_t>self.entries)

    cdef void reserve(self, int chunks) noexcept:
        """The tasks of the next batch are about to be written over what these entries had.

        Writing one may call Python, and then another thread may admit a reader, which must not begin with them.
        """
        self.reserved = max(self.reserved, self.sequences.next_open + chunks)

    cdef void open(self, ring_given *given, uint64_t epoch) noexcept:
        cdef ring_payload *payload = &self.payload[given.payload]
        self.epoch_of[given.sequence % <uint64_t>self.entries] = epoch
        if not given.chunks:
            return
        self.opened_for[given.payload] = given.sequence + 1
        payload.chunks, payload.samples = given.chunks, given.samples
        ring_mark_due(payload, self.live)
        self.behind += 1

    # ------------------------------------------------------------------------------------------- who comes and goes

    cdef uint64_t oldest(self) noexcept:
        cdef uint64_t at = self.sequences.next_open, first
        cdef uint64_t until = max(at, self.reserved)
        cdef ring_given *given
        while at > 0 and until - at < <uint64_t>self.entries:
            given = &self.sequences.given[(at - 1) % <uint64_t>self.entries]
            if given.sequence != at - 1:
                break
            first = self.opened_for[given.payload] - 1
            if first > given.sequence or until - first > <uint64_t>self.entries:
                break
            if first + self.sequences.given[first % <uint64_t>self.entries].chunks != at:
                break
            at = first
        return at

    def find(self, uint64_t epoch, uint64_t batch):
        """The sequence at which a reader begins that is due for this batch of an epoch of the ring first, or None.

        It is the batch's first one, if the ring has it whole.  If the ring has only the batch before it, it is the
        sequence behind that one: the batch will be opened there, or the epoch has ended there.
        """
        cdef uint64_t at = self.oldest()
        cdef bint follows = False
        cdef bint is_its
        cdef ring_given *given
        while at < self.sequences.next_open and not follows:
            given = &self.sequences.given[at % <uint64_t>self.entries]
            is_its = self.epoch_of[at % <uint64_t>self.entries] == epoch
            if is_its and given.batch == batch:
                return at
            follows = is_its and given.batch + 1 == batch
            at += given.chunks
        return at if follows else None

    cpdef uint64_t joins_at(self) noexcept:
        """The next sequence that is opened; if there is no reader now, the first one that the last reader did not take.

        The last reader may have taken batches that the conductor has not seen READY yet, so all_took is not enough.
        """
        if self.live or self.reads:
            return self.sequences.next_open
        return max(self.all_took, self.untaken, self.oldest())

    def named(self, uint64_t sequence):
        """The epoch and the number in it of the batch that a sequence is of, if the ring still has it; or None."""
        cdef ring_given *given = &self.sequences.given[sequence % <uint64_t>self.entries]
        if sequence >= self.sequences.next_open or given.sequence != sequence:
            return None
        return self.epoch_of[sequence % <uint64_t>self.entries], given.batch

    def admit(self, at=None, index=None):
        """Give an index to another process.

        Args:
            at: the sequence that it begins with: one of find(), or the next one that is opened; None: that one, or if
                there is no reader now, the first one that was not taken.
            index: the index to give; None: the lowest free one.

        Returns:
            The index and the sequence; None if all 32 are in use.

        Raises:
            LookupError: the ring has that sequence no more.
        """
        cdef uint64_t first, sequence
        cdef uint32_t bit
        cdef int k = 0
        cdef ring_given *given
        while self.known >> k & 1 and k < 32:
            k += 1
        if index is not None:
            k = index
        if k >= 32:
            return None
        self.advance()
        first = self.joins_at()
        if at is not None:
            first = at
            if first < self.oldest():
                raise LookupError(first)
        bit = <uint32_t>1 << k
        sequence = first
        while sequence < self.sequences.next_open:
            given = &self.sequences.given[sequence % <uint64_t>self.entries]
            ring_add_due(&self.payload[given.payload], bit)
            if sequence < self.all_took:
                self.behind += 1
            sequence += given.chunks
        self.all_took = min(self.all_took, first)
        self.live |= bit
        self.known |= bit
        self.toll()     # the conductor may have paused
        return k, first

    cdef void strike(self, int reader, bint dead) noexcept:
        cdef uint32_t bit = <uint32_t>1 << reader
        cdef uint64_t first = self.sequences.next_open
        cdef bint is_last
        cdef int k
        self.advance()
        is_last = self.live == bit
        self.live &= ~bit
        for k in range(self.payloads):
            if ring_strike(&self.payload[k], ring_due(bit) | (bit if dead else 0)) & ring_due(bit):
                first = min(first, self.opened_for[k] - 1)
        if is_last:
            self.untaken = first
        self.toll()

    def drop(self, int reader) -> None:
        """Give this reader no more batches: none that is opened later, and none that it has not taken yet.

        It keeps the batches that it has taken.  Its index is in use until it is buried.
        """
        check_index("reader", reader, 32)
        self.strike(reader, False)

    def bury(self, int reader) -> None:
        """Free the index of a reader whose process is dead, so that it can read nothing."""
        check_index("reader", reader, 32)
        self.strike(reader, True)
        self.known &= ~(<uint32_t>1 << reader)

    def holds(self, int reader) -> bool:
        """Whether this reader lends or may take anything here."""
        cdef uint64_t bit
        cdef int k
        check_index("reader", reader, 32)
        bit = <uint64_t>1 << reader
        for k in range(self.payloads):
            if ring_word(&self.payload[k]) & (ring_due(bit) | bit):
                return True
        return False

    def holding_up(self) -> int:
        """The bits of the readers that have not taken what has to be taken before another batch can be opened."""
        self.advance()
        if self.all_took >= self.sequences.next_take:
            return 0
        return ring_word(&self.payload[self.sequences.given[self.all_took % <uint64_t>self.entries].payload]) >> 32

    def starved(self) -> int:
        """The bits of the readers that have taken all that is READY."""
        cdef uint64_t at = self.all_took
        cdef uint32_t due = 0
        cdef ring_given *given
        while at < self.sequences.next_take:
            given = &self.sequences.given[at % <uint64_t>self.entries]
            due |= <uint32_t>(ring_word(&self.payload[given.payload]) >> 32)
            at += given.chunks
        return self.live & ~due

    def wait_until_taken(self) -> None:
        """Wait until each of them has taken all that it is due for, or was dropped.  Who takes last rings the bell."""
        cdef uint32_t seen
        while any_due(self.payload, self.payloads):
            with nogil:
                seen = ring_announce(&self.header.ready_bell)
                if any_due(self.payload, self.payloads):
                    ring_sleep(&self.header.ready_bell, seen, NULL)
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx

    @property
    def any_reads(self) -> bool:
        """Whether any of them may still read what lies in the ring."""
        return self.known != 0

    cdef void toll(self) noexcept nogil:
        ring_toll(&self.header.ready_bell)
        ring_toll(&self.header.reader_bell)
