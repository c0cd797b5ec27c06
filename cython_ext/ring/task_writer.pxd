# cython: language_level=3
"""Writes tasks for workers: 64-bit ints and numpy.int64 as they are, everything else pickled."""

from libc.stdint cimport int64_t, uint64_t

from atomics cimport ring_entry
from shmloader.core.ring cimport Mapping


cdef class TaskWriter:
    cdef object segment, dumps
    cdef Mapping mapping
    cdef ring_entry *entry
    cdef int entries
    cdef Py_ssize_t area_at, area_stride
    cdef uint64_t *room                 # bytes that have pages in each entry's area, for tasks

    cdef int write(self, uint64_t sequence, task) except -1
    cdef char *area_for(self, uint64_t sequence, Py_ssize_t bytes) except NULL
    cdef bint indices_written(self, int64_t *at, list indices, Py_ssize_t count, bint numpys) except -1
