# cython: language_level=3
"""Columns of Python's and NumPy's numbers and arrays, read directly from the objects."""

from libc.stdint cimport uint64_t

cdef struct column:
    Py_ssize_t item         # bytes of an element
    Py_ssize_t bytes        # of a row

cdef bint is_scalar(object kind) except -1              # whether it is a NumPy class of plain numbers
cdef object number_dtype(object first, column *of)      # torch's dtype for numbers like this one; None: none is plain
cdef bint numbers_into(object batch, column *of, uint64_t to) except -1     # false if one is of another class
cdef object array_dtype(object first, column *of)       # torch's dtype for arrays like this one; None: it is not plain
cdef tuple array_shape(object first)
cdef bint arrays_at(object batch, column *of, char **rows) except -1        # their addresses; false if one differs
