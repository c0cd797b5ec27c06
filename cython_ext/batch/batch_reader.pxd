# cython: language_level=3
"""Reads batches from the payloads that the trainer has taken."""

from libc.stdint cimport uint64_t

from shmloader.core.batch_tree cimport Kept
from shmloader.core.lease cimport Lease

# ---------------------------------------------------------------------------------------------------------- recipe.pxi

cdef struct place:                      # of a leaf in the slot
    Py_ssize_t start, end               # of it and of those that overlap it
    Py_ssize_t leaf                     # its number
    bint is_first                       # of those


cdef class Recipe:                      # how a batch is made of what lies in its payload
    cdef object plan, build
    # Of each leaf: dtype, offset, shape, strides, end, and which of the storages it has; -1: one of its own
    cdef list leaves
    # Of each storage that leaves share (NOTE [ Views ] in layout.pxi): offset, bytes, and one of the leaves.
    cdef list storages
    cdef bint in_order                  # whether each leaf begins where those before it have ended, or later
    cdef object end                     # where the last of them ends
    # If the batch is lent, NOTE [ Small leaves ]:
    cdef Py_ssize_t divided             # the bytes of the batch for which this holds; -1: not found yet
    cdef Py_ssize_t *moved              # of each leaf: its offset in the block minus that in the slot; STAYS: not small
    cdef list runs                      # (offset, offset in the block, bytes) of what is copied there
    cdef Py_ssize_t block               # bytes

    cdef list copied_leaves(self, Lease lease, object clone)
    cdef list lent_leaves(self, Lease lease, object room)
    cdef Py_ssize_t copy_small(self, Lease lease, uint64_t to) except -1
    cdef int divide(self, Py_ssize_t bytes) except -1
    cdef int end_run(self, Py_ssize_t start, Py_ssize_t end, Py_ssize_t at) except -1
    cdef Py_ssize_t find_places(self, place *those) except -1
    cdef int find_storages(self) except -1


# The recipe for a plan, the function that joins its leaves, and the words of a batch's meta.
cdef Recipe worked_out(object plan, object build, tuple words, object limit)
cdef list places_of(list parts)         # which parts of a slot overlap


cdef class BatchReader:
    cdef Kept kept                      # a plan's number -> (plan, build); meta -> Recipe
    cdef object failure, clone, room
    cdef bint keeps

    cdef list leaves_of(self, Recipe recipe, Lease lease, bint copy)
    cdef object read_chunks(self, Lease lease, bint copy)
    cdef Recipe recipe_of(self, Lease lease, Py_ssize_t chunk)
    cdef Recipe work_out(self, Lease lease, Py_ssize_t chunk, bytes meta, bint again)
