# cython: language_level=3, boundscheck=False, wraparound=False
"""What the benches measure with in C: touching pages, copies, the cost of the ring's verbs, and of a wake-up.
Nothing here is on the way of a batch.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from atomics cimport (
    bell_t, ring_announce, ring_claim, ring_entry, ring_load, ring_open, ring_owner, ring_publish, ring_ring, ring_seq,
    ring_sleep, ring_state, RING_OPEN, RING_READY,
)

cdef extern from "clock.h" nogil:
    uint64_t now "clock_now"()

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t bytes)

cdef extern from "batch/nontemporal.h" nogil:
    void stream_copy(char *to, const char *source, size_t bytes)
    void stream_drain()

cdef enum:
    LINE = 128      # RING_LINE: each bell has one of its own

BELLS_BYTES = 2 * LINE


def touch_pages(uint64_t address, Py_ssize_t bytes) -> int:
    """Read one byte of every 4 KiB page, so that the pages are there; returns their sum."""
    cdef Py_ssize_t k = 0
    cdef int total = 0
    with nogil:
        while k < bytes:
            total += (<const unsigned char *>address)[k]
            k += 4096
    return total


def copy_batches(const uint64_t[::1] slots, const uint64_t[:, ::1] pieces) -> None:
    """Fill each slot, given by address, with all the pieces, given by address and bytes, with memcpy.

    That is the least that plain collating can cost.
    """
    cdef Py_ssize_t slot, k
    cdef char *to
    with nogil:
        for slot in range(slots.shape[0]):
            to = <char *>slots[slot]
            for k in range(pieces.shape[0]):
                memcpy(to, <char *>pieces[k, 0], pieces[k, 1])
                to += pieces[k, 1]


def stream_batches(const uint64_t[::1] slots, const uint64_t[:, ::1] pieces) -> None:
    """copy_batches() with the streaming stores that carry large batches: what is written is not read before."""
    cdef Py_ssize_t slot, k
    cdef char *to
    with nogil:
        for slot in range(slots.shape[0]):
            to = <char *>slots[slot]
            for k in range(pieces.shape[0]):
                stream_copy(to, <char *>pieces[k, 0], pieces[k, 1])
                to += pieces[k, 1]
            stream_drain()


def verbs(int rounds, int entries) -> float:
    """Nanoseconds that a sequence costs with nobody waiting: open, claim, publish and take, both bells included.

    One process plays both sides with the verbs of atomics.h, in a ring of `entries` entries that no one else has in
    his cache: what two cores pay beyond that is the way of a cache line between them.
    """
    cdef ring_entry *entry = <ring_entry *>aligned_alloc(LINE, (entries + 2) * sizeof(ring_entry))
    cdef ring_entry *at
    cdef bell_t *worker_bell
    cdef bell_t *ready_bell
    cdef uint64_t seq, word, last = rounds
    cdef uint64_t start, took
    cdef bint whole = True
    if entry == NULL:
        raise MemoryError()
    memset(entry, 0, (entries + 2) * sizeof(ring_entry))
    worker_bell, ready_bell = <bell_t *>(entry + entries), <bell_t *>(entry + entries + 1)
    with nogil:
        start = now()
        for seq in range(last):
            at = entry + seq % entries
            ring_open(at, seq, 0)
            ring_ring(worker_bell)
            word = ring_load(at)
            whole &= ring_seq(word) == seq and ring_state(word) == RING_OPEN and ring_owner(word) == 0
            whole &= ring_claim(at, seq, 0, 0)
            whole &= ring_publish(at, seq, 0)
            ring_ring(ready_bell)
            word = ring_load(at)
            whole &= ring_seq(word) == seq and ring_state(word) == RING_READY
        took = now() - start
    free(entry)
    if not whole:
        raise AssertionError("a sequence was not handed over")
    return took / <double>rounds


def wake_ups(uint64_t bells, int rounds, bint first) -> float:
    """Nanoseconds of one wake-up between two processes: half a round trip over two bells, each side asleep meanwhile.

    Args:
        bells: address of BELLS_BYTES zero bytes of shared memory, on a line boundary.
        rounds: round trips; the same on both sides.
        first: whether this side rings first.  The other side's process calls this with False.
    """
    cdef bell_t *mine = <bell_t *>(bells if first else bells + LINE)
    cdef bell_t *other = <bell_t *>(bells + LINE if first else bells)
    cdef uint64_t start = now()
    cdef int k
    for k in range(rounds):
        with nogil:
            if first:
                ring_ring(other)
            wait_for(mine, k + 1)
            if not first:
                ring_ring(other)
    return (now() - start) / <double>rounds / 2


cdef void wait_for(bell_t *bell, uint32_t rings) noexcept nogil:
    """Sleep until the bell has been rung this often.  Its count is what announce returns, above the sleeper's bit."""
    cdef uint32_t seen
    while True:
        seen = ring_announce(bell)
        if seen >> 1 >= rings:
            return
        ring_sleep(bell, seen, NULL)
