# cython: language_level=3
"""Reads batches from the payloads that the trainer has taken."""

from shmloader.core.batch_tree cimport Kept
from shmloader.core.lease cimport Lease

include "batch/recipe.pxd"


cdef class BatchReader:
    cdef Kept kept                      # a plan's number -> (plan, build); meta -> Recipe
    cdef object failure, clone, room
    cdef bint keeps

    cdef list leaves_of(self, Recipe recipe, Lease lease, bint copy)
    cdef object read_chunks(self, Lease lease, bint copy)
    cdef Recipe recipe_of(self, Lease lease, Py_ssize_t chunk)
    cdef Recipe work_out(self, Lease lease, Py_ssize_t chunk, bytes meta, bint again)
