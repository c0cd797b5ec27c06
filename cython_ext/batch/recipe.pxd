# cython: language_level=3
"""How a batch is made of what lies in its payload."""

from libc.stdint cimport uint64_t

from shmloader.core.lease cimport Lease


cdef class Recipe:                      # how a batch is made of what lies in its payload
    cdef object plan, build
    # Of each leaf: dtype, offset, shape, strides, end, and which of the storages it has; -1: one of its own
    cdef list leaves
    cdef list storages                  # (offset, bytes) of those that leaves share: NOTE [ Views ] in layout.pyx
    cdef object end                     # where the last of them ends
    # If the batch is lent, NOTE [ Small leaves ]:
    cdef Py_ssize_t divided             # the bytes of the batch for which this holds; -1: not found yet
    cdef list lent                      # of each leaf: dtype, whether it is small, offset there, shape, strides, storage
    cdef list lent_storages             # of each storage: whether it is small, offset there, bytes
    cdef list runs                      # (offset, offset in the block, bytes) of what is copied there
    cdef Py_ssize_t block               # bytes

    cdef list copied_leaves(self, Lease lease, object clone)
    cdef list lent_leaves(self, Lease lease, object room)
    cdef Py_ssize_t copy_small(self, Lease lease, uint64_t to) except -1
    cdef int divide(self, Py_ssize_t bytes) except -1
    cdef int find_storages(self) except -1


# The recipe for a plan, the function that joins its leaves, and the words of a batch's meta.
cdef Recipe worked_out(object plan, object build, tuple words, object limit)
cdef list places_of(list parts)         # which parts of a slot overlap
