# cython: language_level=3
"""The bytes of frozen lists, and what makes Python's objects of them; see NOTE [ Columns ] in frozen_rows.pyx."""

from cpython.buffer cimport Py_buffer


cdef class Pages:
    cdef readonly object memory
    cdef readonly Py_ssize_t place, size
    cdef Py_buffer held
    cdef bint is_held
    cdef const char *first

    cdef const char *at(self, Py_ssize_t place, Py_ssize_t count, Py_ssize_t width) except NULL


cdef class Rows:
    cdef Pages pages        # keeps the bytes

    cdef object row(self, Py_ssize_t k)


cdef Rows read(tuple layout, Pages pages, Py_ssize_t count)
