# cython: language_level=3
"""The last sequences that were taken, one by one: for pictures and traces."""

from libc.stdint cimport uint32_t, uint64_t

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
