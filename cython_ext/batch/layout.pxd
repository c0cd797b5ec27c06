# cython: language_level=3
"""Puts leaves into a payload, and finds those that share memory."""

from shmloader.core.tensors cimport elements
from shmloader.core.worker cimport WorkerSide


cdef class Block:                       # the memory of leaves that overlap: NOTE [ Views ]
    cdef readonly size_t address
    cdef readonly Py_ssize_t bytes
    cdef readonly list leaves           # their numbers
    cdef Py_ssize_t at                  # the offset in the payload; -1: it is not there yet

cpdef list blocks(list tensors)
cdef list place_all(WorkerSide ring, list leaves, list buffers, list words)
cdef int about_to_write(WorkerSide ring, Py_ssize_t at, Py_ssize_t bytes) except -1
cdef int copy_in(WorkerSide ring, object leaf, elements *of, Py_ssize_t at, tuple shape, tuple strides) except -1
cdef bint is_outermost(tuple strides, tuple shape)      # whether the elements of the first dimension lie farthest apart
cdef int note(list words, Py_ssize_t at, tuple shape, tuple strides) except -1
