# cython: language_level=3
"""What the user has got of an epoch."""

from libc.stdint cimport uint32_t, uint64_t


cdef class Progress:
    cdef readonly uint64_t batches      # the first so many batches of the epoch were handed out
    cdef readonly uint64_t samples      # that were in them
    cdef readonly dict beyond           # out of order: samples of batches handed out behind the first one that was not
    cdef readonly list of_workers       # of streams: batches of each worker that were handed out
    cdef readonly list ended            # of streams: whether each worker has nothing more to give
    cdef public list states             # of streams: what each said of itself by then; None: it is in the ring's cells
    cdef readonly int latest            # of streams: the worker whose batch was handed out last; -1: none yet
    cdef bint numbered

    cdef int end(self, int worker) except -1
    cdef bint has_ended(self) noexcept  # of streams: whether no worker has anything more to give
    cdef int count(self, uint64_t number, uint32_t samples, int worker) except -1
