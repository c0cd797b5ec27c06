# cython: language_level=3, boundscheck=False, wraparound=False
"""The counts of one loader: histograms and sums.  There is no lock, because all writers hold the GIL."""

cimport cython
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

include "figures/log.pxi"


@cython.final
cdef class Figures:
    """The counts of one loader so far, or between two moments.

    Args:
        workers: how many the loader has.
    """

    def __cinit__(self, int workers=0):
        self.have(workers)

    def __dealloc__(self):
        free(self.worker)

    cpdef int have(self, int workers) except -1:
        """Make room for the figures of this number of workers."""
        cdef of_worker *more
        if workers > self.workers:
            more = <of_worker *>realloc(self.worker, workers * sizeof(of_worker))
            if more == NULL:
                raise MemoryError()
            memset(&more[self.workers], 0, (workers - self.workers) * sizeof(of_worker))
            self.worker, self.workers = more, workers
        return 0

    def copy(self):
        """A copy, which does not count on."""
        cdef Figures other = Figures.__new__(Figures, self.workers)
        memcpy(&other.at, &self.at, sizeof(figures))
        if self.workers:
            memcpy(other.worker, self.worker, self.workers * sizeof(of_worker))
        return other

    def less(self, Figures earlier not None) -> None:
        """Subtract an earlier copy."""
        subtract(<uint64_t *>&self.at, <uint64_t *>&earlier.at, sizeof(figures))
        subtract(<uint64_t *>self.worker, <uint64_t *>earlier.worker,
                 min(self.workers, earlier.workers) * sizeof(of_worker))

    # ---------------------------------------------------------------------------------------------- to read them

    def count(self, int kind) -> int:
        """How many times are in a histogram."""
        return self.of(kind).count

    def seconds(self, int kind) -> float:
        """The sum of a histogram's times."""
        return self.of(kind).sum / 1e9

    def percentile(self, int kind, double share) -> float:
        """The time, in seconds, below which this share of the times are, to 3 %; 0 if there are none."""
        return histogram_percentile(self.of(kind), share) / 1e9

    cdef histogram *of(self, int kind) except NULL:
        if not 0 <= kind < KINDS:
            raise IndexError(f"there is no histogram {kind}: there are {KINDS}")
        return &self.at.of[kind]

    def amount(self, int kind) -> int:
        """One of the sums."""
        return self.at.amount[self.check(kind)]

    cdef int check(self, int kind) except -1:
        if not 0 <= kind < AMOUNTS:
            raise IndexError(f"there is no amount {kind}: there are {AMOUNTS}")
        return kind

    def held(self) -> list[int]:
        """For batches that were lent and have died: how many there were, by how many were handed out meanwhile.

        The last number counts all batches for which it were that many or more.
        """
        cdef int k
        return [self.at.held[k] for k in range(MOST_HELD)]

    def of_worker(self, int worker) -> dict[str, int]:
        """The counts of one worker."""
        if not 0 <= worker < self.workers:
            raise IndexError(f"there is no worker {worker}: there are {self.workers}, counted from 0")
        return self.worker[worker]

    # ---------------------------------------------------------------------------- what Python counts, as it is rare

    def add(self, int kind, uint64_t more=1) -> None:
        """Add to an amount."""
        self.at.amount[self.check(kind)] += more

    def add_time(self, int kind, uint64_t nanoseconds) -> None:
        """Add a time to a histogram."""
        histogram_add(self.of(kind), nanoseconds)


cdef void subtract(uint64_t *of, const uint64_t *earlier, size_t bytes) noexcept:
    cdef size_t k
    for k in range(bytes // sizeof(uint64_t)):
        of[k] -= min(of[k], earlier[k])     # an overwritten word may have shrunk, and must not become 2**64
