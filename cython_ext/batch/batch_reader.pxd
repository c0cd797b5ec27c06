# cython: language_level=3
"""Reads batches from the payloads that the trainer has taken."""

from shmloader.core.lease cimport Lease


cdef class Recipe:                      # how a batch is made of what lies in its payload
    cdef object plan, build
    cdef list leaves                    # (dtype, offset, shape, strides) of each
    cdef object end                     # where the last of them ends

    cdef list leaves_over(self, Lease lease, object clone)
    cdef int compare(self, Recipe other, Py_ssize_t chunk, Lease lease) except -1


cdef class BatchReader:
    cdef dict plans                     # number -> (plan, build)
    cdef dict recipes                   # meta -> Recipe
    cdef object failure, clone

    cdef object read_chunks(self, Lease lease, bint copy)
    cdef Recipe recipe_of(self, Lease lease, Py_ssize_t chunk)
    cdef Recipe work_out(self, Lease lease, Py_ssize_t chunk, bytes meta)
