# cython: language_level=3
"""The payload that a worker is filling, and parts of it, as buffers."""

from shmloader.core.ring cimport Ring


cdef class Fill:
    cdef Ring ring              # keeps the payload mapped
    cdef char *data
    cdef Py_ssize_t bytes
    cdef Fill former            # of the same batch, over a room that it has outgrown: NOTE [ Rooms ] in ring.pxd


cdef class Part:
    cdef Fill fill              # keeps the payload mapped, and is seen by has_views()
    cdef char *data
    cdef Py_ssize_t at, bytes   # in the payload
    cdef Py_ssize_t before      # how many bytes were allocated without it
