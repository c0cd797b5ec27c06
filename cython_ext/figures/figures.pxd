# cython: language_level=3
"""The figures of one loader, as the trainer adds them up.  NOTE [ Figures ] in atomics.h lists their sources."""

from libc.stdint cimport uint32_t, uint64_t

# ------------------------------------------------------------------------------------------------------------- log.pxi

cdef struct taken:      # a sequence; times are CLOCK_MONOTONIC, in nanoseconds; 0: not yet
    uint64_t batch, sequence
    uint64_t opened_at, claimed_at, fetched_at, published_at
    uint64_t asked_at, taken_at, handed_out_at, dropped_at
    uint32_t epoch, worker, chunk, samples


cdef class Log:
    cdef taken *at
    cdef readonly int size
    cdef int usual                      # how many it keeps without a trace
    cdef readonly uint64_t count        # of sequences noted so far
    cdef uint64_t first                 # the number of the first one that may be kept

    cdef taken *next(self) noexcept
    cdef bint has(self, uint64_t number) noexcept
    cdef uint64_t oldest(self) noexcept
    cdef void handed_out(self, uint64_t number, uint64_t time) noexcept
    cdef void dropped(self, uint64_t number, uint64_t time) noexcept


cdef extern from "figures/histogram.h" nogil:
    enum: HISTOGRAM_BUCKETS
    ctypedef struct histogram:
        uint64_t count, sum
    void histogram_add(histogram *to, uint64_t nanoseconds)
    double histogram_percentile(const histogram *of, double share)

cpdef enum:     # histograms
    WAIT, STEP, FIRST                       # in next(); between two calls; in the first next() of an epoch
    SOURCE_WAIT, SOURCE_STEP, SOURCE_FIRST  # the same of a prefetch thread, if there is one
    CLAIM, FETCH, COLLATE                   # of a sequence: open; samples being fetched; collated and written
    ORDER, READY                            # of a batch: READY, but an earlier one was not; ready to be taken
    LENT, TO_DEVICE                         # of a batch: the user's; under way to a device
    KINDS

cpdef enum:     # sums
    BATCHES, SAMPLES, BYTES                 # taken
    EMPTY, READY_BATCHES                    # calls of next() that found nothing ready; ready batches, over all calls
    # The trainer's wait, by the stage of its batch: not open, not claimed, fetched, collated, published, handed out.
    ON_OPEN, ON_CLAIM, ON_FETCH, ON_COLLATE, ON_WAKE, ON_HAND_OUT
    COPIED_SPARE, COPIED_KEPT, COPIED_UNLOCKED  # batches copied: spare slots spent, kept by a worker, not page-locked
    GROWN, DEATHS                           # slots that had to grow; workers that died
    STARTING                                # nanoseconds in the first next() calls of an epoch, one for each worker
    MOVED                                   # slots that lay in a memfd when their ring was closed
    AMOUNTS

cdef enum:
    MOST_HELD = 32      # batches: higher numbers, handed out while one was lent, count as this one

cdef struct of_worker:  # a worker's words, and the time that the trainer waited for it
    uint64_t published, fetched_ns, collated_ns, idle_ns, behind_ns, cpu_ns, delayed_ns, probed_ns, waited_ns

cdef struct figures:    # only words of 64 bits, because less() relies on that
    histogram of[KINDS]
    uint64_t amount[AMOUNTS]
    uint64_t held[MOST_HELD]                # by how many batches were handed out while one was lent


cdef class Figures:
    cdef figures at
    cdef of_worker *worker
    cdef readonly int workers

    cdef histogram *of(self, int kind) except NULL
    cdef int check(self, int kind) except -1

    cpdef int have(self, int workers) except -1
