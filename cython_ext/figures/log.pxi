"""The last sequences that were taken, each with its times, in a ring of a fixed size that a trace can enlarge."""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from typing import NamedTuple

SIZE = 512      # sequences, 96 bytes each


class Taken(NamedTuple):
    """A sequence that was taken: a batch, or one of its chunks.  Times are those of time.monotonic_ns(); 0: not yet.
    """

    batch: int              # its number in the epoch
    sequence: int
    opened_at: int          # by the trainer, for a worker or for any
    claimed_at: int         # by the worker
    fetched_at: int         # its samples were there
    published_at: int       # they were collated and written
    asked_at: int           # the next() that took it was called; 0: it was not taken by next()
    taken_at: int
    handed_out_at: int      # next() returned
    dropped_at: int         # the last tensor over its slot died; at once if the batch was copied out
    epoch: int              # of the ring's
    worker: int
    chunk: int
    samples: int            # of the whole batch; 0 in a further chunk


@cython.final
cdef class Log:
    """Notes the sequences that are taken.

    Args:
        size: how many it keeps.
    """

    def __cinit__(self, int size=SIZE):
        self.at = <taken *>calloc(max(1, size), sizeof(taken))
        if self.at == NULL:
            raise MemoryError()
        self.size = self.usual = max(1, size)

    def __dealloc__(self):
        free(self.at)

    def keep(self, int size) -> None:
        """From now on, keep this many, or the usual number if that is more.  Those that it has stay."""
        cdef taken *room
        cdef uint64_t k
        size = max(size, self.usual)
        if size == self.size:
            return
        room = <taken *>calloc(size, sizeof(taken))
        if room == NULL:
            raise MemoryError()
        self.first = max(self.oldest(), self.count - min(self.count, <uint64_t>size))
        for k in range(self.first, self.count):
            room[k % <uint64_t>size] = self.at[k % <uint64_t>self.size]
        free(self.at)
        self.at, self.size = room, size

    cdef taken *next(self) noexcept:
        self.count += 1
        return &self.at[(self.count - 1) % <uint64_t>self.size]

    cdef void handed_out(self, uint64_t number, uint64_t time) noexcept:
        """The batch whose first sequence has this number was handed out."""
        cdef uint64_t k = number
        while self.has(k) and (k == number or self.at[k % <uint64_t>self.size].chunk):
            self.at[k % <uint64_t>self.size].handed_out_at = time
            k += 1

    cdef void dropped(self, uint64_t number, uint64_t time) noexcept:
        """The last tensor of this batch died."""
        cdef uint64_t k = number
        while self.has(k) and (k == number or self.at[k % <uint64_t>self.size].chunk):
            self.at[k % <uint64_t>self.size].dropped_at = time
            k += 1

    cdef bint has(self, uint64_t number) noexcept:
        return self.oldest() <= number < self.count

    cdef uint64_t oldest(self) noexcept:
        """The number of the first one that is kept."""
        return max(self.first, self.count - min(self.count, <uint64_t>self.size))

    def since(self, uint64_t number=0) -> list[Taken]:
        """The sequences with this number or a later one that are still kept; the first one ever is number 0."""
        cdef uint64_t k
        cdef taken *at
        cdef list found = []
        for k in range(max(number, self.oldest()), self.count):
            at = &self.at[k % <uint64_t>self.size]
            found.append(Taken(at.batch, at.sequence, at.opened_at, at.claimed_at, at.fetched_at, at.published_at,
                               at.asked_at, at.taken_at, at.handed_out_at, at.dropped_at, at.epoch, at.worker, at.chunk,
                               at.samples))
        return found
