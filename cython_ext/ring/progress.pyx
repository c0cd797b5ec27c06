# cython: language_level=3
"""How much of an epoch the user has got, counted where a batch is handed out, and not where it is made or taken."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t


@cython.final
cdef class Progress:
    """Counts the batches that were handed out, errors in a batch's place included.

    It outlives the iterator that counts with it, and may be read at any time, in a signal handler too.

    Args:
        numbered: whether batches come out of order, so that their numbers are to be looked at.
        workers: of streams, each of which has an order of its own; else 0.
    """

    def __init__(self, bint numbered=False, int workers=0):
        self.numbered = numbered
        self.beyond = {}
        self.of_workers, self.ended = [0] * workers, [False] * workers
        self.latest = -1

    cdef int count(self, uint64_t number, uint32_t samples, int worker) except -1:
        if self.of_workers:
            self.states = None      # what was kept is of before
            self.of_workers[worker] += 1
            self.latest = worker
        elif self.numbered and number != self.batches:
            self.beyond[number] = samples
            return 0
        self.batches += 1
        self.samples += samples
        while self.beyond and self.batches in self.beyond:
            self.samples += self.beyond.pop(self.batches)
            self.batches += 1
        return 0

    cdef int end(self, int worker) except -1:
        """This worker has nothing more to give."""
        if self.ended:
            self.states = None
            self.ended[worker] = True
        return 0

    cdef bint has_ended(self) noexcept:
        cdef object ended
        for ended in self.ended:
            if ended is False:
                return False
        return len(self.ended) > 0

    def add(self, int samples) -> None:
        """Count another batch that was handed out in order, of this number of samples."""
        self.count(self.batches, samples, 0)

    def copy(self):
        """The same count, that does not go on: for whoever hands the batches on later."""
        cdef Progress other = Progress.__new__(Progress)
        other.batches, other.samples = self.batches, self.samples
        other.numbered, other.latest = self.numbered, self.latest
        other.beyond = self.beyond.copy() if self.beyond else {}
        other.of_workers, other.ended, other.states = self.of_workers.copy(), self.ended.copy(), self.states
        return other
