# cython: language_level=3
"""Tensors and arrays as bytes at an address, and bytes as tensors and arrays."""

from libc.stdint cimport uint64_t

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef struct elements:   # of a leaf
    uint64_t address
    Py_ssize_t bytes
    Py_ssize_t span     # bytes from the first element to the last; 0: no other leaf can share them
    bint dense          # row-major, without gaps
    bint lazy           # they are the conjugates, or the negatives, of the stored values

cpdef object tensor_over(object buffer, object dtype, Py_ssize_t at, tuple shape, tuple strides=*)
cdef object tensor_at(object owner, char *data, Py_ssize_t bytes, object dtype, Py_ssize_t at, tuple shape,
                      tuple strides)
cdef object tensor_in(object storage, object dtype, Py_ssize_t at, tuple shape, tuple strides)
cdef object array_over(object buffer, object dtype, Py_ssize_t at, tuple shape, tuple strides)
cdef bint is_dense(object tensor) except -1             # whether it is only its elements, on the CPU
cdef tuple look_at(object leaf, elements *of)           # the place and layout of its elements; returns the shape
cdef tuple strides_of(object leaf)                      # in elements
cdef tuple other_order(object leaf)                     # the strides, if they fill their memory in another order
cdef object unequal(object shape, Py_ssize_t at, object other, Py_ssize_t other_at)
cdef object of_its_class(object first, object room)     # the tensor of first's class over room's memory
cdef bint are_stacked_alike(object batch, object rows) except -1    # whether torch.stack only copies them
cdef int check_memory(object leaf, elements *of) except -1


# ---------------------------------------------------------------------------------------------------------- gather.pxi

cpdef int copy_bytes(uint64_t to, uint64_t source, Py_ssize_t bytes) except -1
# Copies rows of the same number of bytes, one after the other.
cdef int copy_rows(uint64_t to, char **rows, Py_ssize_t count, Py_ssize_t bytes) except -1
# Copies the elements of tensors, one after the other; false if they are not all plain contiguous tensors of one kind.
cpdef bint stack_rows(list batch, uint64_t to) except -1
# Whether they lie there already.
cpdef bint rows_lie_at(object batch, uint64_t at) except -1


# --------------------------------------------------------------------------------------------------------- columns.pxi

cdef struct column:
    Py_ssize_t item         # bytes of an element
    Py_ssize_t bytes        # of a row

cdef bint is_scalar(object kind) except -1              # whether it is a NumPy class of plain numbers
cdef object number_dtype(object first, column *of)      # torch's dtype for numbers like this one; None: none is plain
cdef bint numbers_into(object batch, column *of, uint64_t to) except -1     # false if one is of another class
cdef object array_dtype(object first, column *of)       # torch's dtype for arrays like this one; None: it is not plain
cdef tuple array_shape(object first)
cdef bint arrays_at(object batch, column *of, char **rows) except -1        # their addresses; false if one differs
