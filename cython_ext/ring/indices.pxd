# cython: language_level=3
"""The iterator over an epoch's indices."""

from libc.stdint cimport uint64_t

cdef enum last_draw:    # its result
    GAVE                # an index; or nothing was drawn yet
    LOST                # a signal handler raised during it, which ends a sampler that is a generator
    RAISED              # the sampler raised; it may be asked again
    EXHAUSTED           # there are no more


cdef class Indices:
    cdef public object indices          # the iterator over those that are left
    cdef last_draw last

    cdef object draw(self, uint64_t count)
