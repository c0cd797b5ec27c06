"""The payload that a worker is filling, as a buffer: its reference count shows what still uses it."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo


@cython.final
@cython.no_gc
cdef class Fill:
    """The payload that a worker is filling, exported as a buffer.  Its reference count shows what still uses it."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.bytes, 0, flags)
