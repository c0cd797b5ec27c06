# cython: language_level=3
"""The trainer's accounts of the cells, which hold the states of streams: which are free, and whose the others are."""

from libc.stdint cimport uint32_t

from shmloader.core.ring cimport Mapping


cdef class Cells:
    cdef Mapping mapping
    cdef int count, workers
    cdef Py_ssize_t cell_at, cell_stride
    cdef list free                      # cells that belong to no sequence and no worker
    cdef list left                      # for each worker: the cell of its last state that counted, and the bytes in it
    cdef uint32_t taken, size           # the cell of the batch that was taken last, and the bytes in it; or NO_CELL

    cdef int begin(self) except -1
    cdef int check_room(self, int sequences) except -1
    cdef uint32_t give(self) except? 0xffffffff         # for a sequence that is about to be opened
    cdef int took(self, uint32_t cell, uint32_t size) except -1     # the batch of this cell was taken
    cdef int keep(self, int worker) except -1           # the state of the batch that was taken last counts from now on
    cdef list read(self)
