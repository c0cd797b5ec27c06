# cython: language_level=3
"""Counts what the user has received of an epoch."""

from libc.stdint cimport uint32_t, uint64_t


cdef class Progress:
    cdef readonly uint64_t batches      # of the epoch, handed out
    cdef readonly uint64_t samples      # in these
    cdef readonly list of_workers       # of streams: batches of each worker that were handed out
    cdef readonly list ended            # of streams: whether each worker has nothing more to give
    cdef public list states             # of streams: the state of each then; None: the ring's cells have them
    cdef readonly int latest            # of streams: the worker whose batch was handed out last; -1: none yet

    cdef int end(self, int worker) except -1
    cdef bint has_ended(self) noexcept  # of streams: whether no worker has anything more to give
    cdef int count(self, uint32_t samples, int worker) except -1
