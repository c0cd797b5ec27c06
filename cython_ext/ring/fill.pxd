# cython: language_level=3
"""The payload that a worker is filling, as a buffer."""

from shmloader.core.ring cimport Ring


cdef class Fill:
    cdef Ring ring              # keeps the payload mapped
    cdef char *data
    cdef Py_ssize_t bytes
    cdef Fill former            # of the same batch, over a room that it has outgrown: NOTE [ Rooms ] in ring.pxd
