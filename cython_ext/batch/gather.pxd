# cython: language_level=3
"""Copies between addresses, without the GIL."""

from libc.stdint cimport uint64_t

cpdef int copy_bytes(uint64_t to, uint64_t source, Py_ssize_t bytes) except -1
# Copies rows of the same number of bytes, one after the other.
cdef int copy_rows(uint64_t to, char **rows, Py_ssize_t count, Py_ssize_t bytes) except -1
# Copies the elements of tensors, one after the other; false if they are not all plain contiguous tensors of one kind.
cpdef bint stack_rows(list batch, uint64_t to) except -1
# Whether they lie there already.
cpdef bint rows_lie_at(object batch, uint64_t at) except -1
