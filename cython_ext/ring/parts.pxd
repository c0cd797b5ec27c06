# cython: language_level=3
"""The parts of a payload in which leaves were collated."""


cdef class Part:
    cdef Fill fill              # keeps the payload mapped, and is seen by has_views()
    cdef char *data
    cdef Py_ssize_t at, bytes   # in the payload
    cdef Py_ssize_t before      # how many bytes were allocated without it


cdef class Parts:
    cdef list kept                      # of Part, in the order of the payload; empty in chunks

    cdef Py_ssize_t without_last(self, Py_ssize_t used) noexcept    # how many bytes are allocated then
    cdef Py_ssize_t unused(self, Py_ssize_t bytes) noexcept         # where such a part is, which is none now; or -1
    cdef int count_unused(self) noexcept
