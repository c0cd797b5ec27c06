# cython: language_level=3
"""Reads batches from the payloads that the trainer has taken."""

from libc.stdint cimport uint64_t

from shmloader.core.lease cimport Lease


cdef class Recipe:                      # how a batch is made of what lies in its payload
    cdef object plan, build
    cdef list leaves                    # (dtype, offset, shape, strides, end) of each
    cdef object end                     # where the last of them ends
    # If the batch is lent, NOTE [ Small leaves ]:
    cdef Py_ssize_t divided             # the bytes of the batch for which this holds; -1: not found yet
    cdef list lent                      # (dtype, whether it is small, offset there, shape, strides) of each leaf
    cdef list runs                      # (offset, offset in the block, bytes) of what is copied there
    cdef Py_ssize_t block               # bytes

    cdef list copied_leaves(self, Lease lease, object clone)
    cdef list lent_leaves(self, Lease lease, object room)
    cdef Py_ssize_t copy_small(self, Lease lease, uint64_t to) except -1
    cdef int divide(self, Py_ssize_t bytes) except -1
    cdef list places(self)
    cdef int compare(self, Recipe other, Py_ssize_t chunk, Lease lease) except -1


cdef class BatchReader:
    cdef dict plans                     # number -> (plan, build)
    cdef dict recipes                   # meta -> Recipe
    cdef object failure, clone, room
    cdef bint keeps

    cdef list leaves_of(self, Recipe recipe, Lease lease, bint copy)
    cdef object read_chunks(self, Lease lease, bint copy)
    cdef Recipe recipe_of(self, Lease lease, Py_ssize_t chunk)
    cdef Recipe work_out(self, Lease lease, Py_ssize_t chunk, bytes meta)
