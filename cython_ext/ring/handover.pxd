# cython: language_level=3
"""The states of a worker's random generators, which its successor reads if it dies."""

from libc.stdint cimport uint64_t

from atomics cimport ring_memory


cdef class Handover:
    cdef char *at                       # the worker's two halves, in the memory of the owner's ring
    cdef Py_ssize_t stride              # bytes from one half to the other

    # `claimed` is the sequence that the worker has claimed.
    cdef int leave(self, uint64_t claimed, bytes states) except -1
    cdef bytes take(self, uint64_t claimed)
    cdef ring_memory *last(self, uint64_t claimed) noexcept nogil
    cdef ring_memory *half(self, int at) noexcept nogil
    cdef Py_ssize_t room(self) except -1
