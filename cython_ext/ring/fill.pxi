"""The payload that a worker is filling, and parts of it, as buffers: their reference counts show what is in use."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo


@cython.final
@cython.no_gc
cdef class Fill:
    """The payload that a worker is filling, exported as a buffer.  Its reference count shows what still uses it."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.bytes, 0, flags)


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Part:
    """The bytes of one leaf that was collated there.  If nothing views them, another leaf may lie there."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.bytes, 0, flags)
