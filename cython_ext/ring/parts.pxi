"""The payload that a worker fills, as a buffer, and its parts, in which leaves of the batch were collated.
A leaf that is not in the batch leaves room for others.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE

cdef enum:
    ALIGN = 128         # bytes; where a leaf begins
    LOOKS = 8           # parts; a batch of more is large enough without looking at all of them


cdef inline bint is_viewed(list parts, Py_ssize_t k) noexcept:
    return PyList_GET_ITEM(parts, k).ob_refcnt > 1


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


@cython.final
@cython.no_gc
cdef class Parts:
    """The parts of the payload that a worker is filling."""

    def __cinit__(self):
        self.kept = []

    cdef Py_ssize_t without_last(self, Py_ssize_t used) noexcept:
        """Free the parts at the end of what is allocated that nothing views.

        Returns:
            How many bytes are allocated then, of `used` bytes.
        """
        cdef Py_ssize_t k = PyList_GET_SIZE(self.kept)
        cdef Part part
        while k and not is_viewed(self.kept, k - 1):
            part = self.kept[k - 1]
            if part.at + part.bytes != used:
                break
            used = part.before
            k -= 1
            del self.kept[k]
        return used

    cdef Py_ssize_t unused(self, Py_ssize_t bytes) noexcept:
        """The offset of a part of at least so many bytes that nothing views; -1: there is none.  It stops being a part."""
        cdef Py_ssize_t k, count = PyList_GET_SIZE(self.kept)
        cdef Part part
        for k in range(max(count - LOOKS, 0), count):
            if not is_viewed(self.kept, k):
                part = self.kept[k]
                if part.bytes >= bytes:
                    del self.kept[k]
                    return part.at
        return -1

    cdef int count_unused(self) noexcept:
        """How many parts nothing views."""
        cdef Py_ssize_t k
        cdef int count = 0
        for k in range(PyList_GET_SIZE(self.kept)):
            count += not is_viewed(self.kept, k)
        return count
