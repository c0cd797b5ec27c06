# cython: language_level=3
"""Tensors and arrays as bytes at an address, and bytes as tensors and arrays."""

from libc.stdint cimport uint64_t

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

include "batch/gather.pxd"
include "batch/columns.pxd"
