"""Counts what the user has received of an epoch: batches count when they are handed out, not when they are taken."""


@cython.final
cdef class Progress:
    """Counts the batches that were handed out, with the errors in a batch's place.

    It outlives the iterator that counts with it.  It may be read at any time, also in a signal handler.

    Args:
        workers: for streams, each of which has an order of its own: how many workers; otherwise 0.
    """
    cdef readonly uint64_t batches      # of the epoch, handed out
    cdef readonly uint64_t samples      # in these
    cdef readonly list of_workers       # of streams: batches of each worker that were handed out
    cdef readonly list ended            # of streams: whether each worker has nothing more to give
    cdef public list states             # of streams: the state of each then; None: the ring's cells have them
    cdef readonly int latest            # of streams: the worker whose batch was handed out last; -1: none yet

    def __init__(self, int workers=0):
        self.of_workers, self.ended = [0] * workers, [False] * workers
        self.latest = -1

    cpdef int add(self, uint32_t samples, int worker=0) except -1:
        """Count another batch that was handed out, of this number of samples."""
        if self.of_workers:
            self.states = None      # these states are no longer current
            self.of_workers[worker] += 1
            self.latest = worker
        self.batches += 1
        self.samples += samples
        return 0

    cdef int end(self, int worker) except -1:
        """This worker has nothing more to give."""
        if self.ended:
            self.states = None
            self.ended[worker] = True
        return 0

    cdef bint has_ended(self) noexcept:
        """Of streams: whether no worker has anything more to give."""
        cdef object ended
        for ended in self.ended:
            if ended is False:
                return False
        return len(self.ended) > 0

    def copy(self):
        """A snapshot, for a thread that passes the batches on later."""
        cdef Progress other = Progress.__new__(Progress)
        other.batches, other.samples = self.batches, self.samples
        other.latest = self.latest
        other.of_workers, other.ended, other.states = self.of_workers.copy(), self.ended.copy(), self.states
        return other
