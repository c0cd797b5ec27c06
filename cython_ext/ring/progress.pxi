"""Counts what the user has received of an epoch: batches count when they are handed out, not when they are taken."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t


@cython.final
cdef class Progress:
    """Counts the batches that were handed out, with the errors in a batch's place.

    It outlives the iterator that counts with it.  It may be read at any time, also in a signal handler.

    Args:
        numbered: whether batches come out of order, so that their numbers count.
        workers: for streams, each of which has an order of its own: how many workers; otherwise 0.
    """

    def __init__(self, bint numbered=False, int workers=0):
        self.numbered = numbered
        self.beyond = {}
        self.of_workers, self.ended = [0] * workers, [False] * workers
        self.latest = -1

    cdef int count(self, uint64_t number, uint32_t samples, int worker) except -1:
        if self.of_workers:
            self.states = None      # these states are no longer current
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

    @property
    def returned(self):
        raise AttributeError("it can only be set")

    @returned.setter
    def returned(self, int samples):
        """add(), without a call: no signal's handler runs between it and the line that follows."""
        self.count(self.batches, samples, 0)

    def copy(self):
        """A snapshot, for a thread that passes the batches on later."""
        cdef Progress other = Progress.__new__(Progress)
        other.batches, other.samples = self.batches, self.samples
        other.numbered, other.latest = self.numbered, self.latest
        other.beyond = self.beyond.copy() if self.beyond else {}
        other.of_workers, other.ended, other.states = self.of_workers.copy(), self.ended.copy(), self.states
        return other
