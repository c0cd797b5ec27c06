# cython: language_level=3
"""What a process keeps of the structures of batches.  kept.pxi explains it."""

cdef enum:
    NOTED = 2048
    EACH_PICKLED = 16   # bytes of memory for each byte of a pickled plan, at most


cdef class Account:
    cdef list members                   # weak references to the Kepts that share it
    cdef Py_ssize_t most                # bytes that they keep together


cdef class Kept:
    cdef dict kept
    cdef Account account
    cdef Py_ssize_t bytes
    cdef Py_hash_t noted[NOTED]         # of what was met, by the last bits
    cdef object __weakref__

    cpdef object get(self, object key)
    cpdef bint meets(self, object key) except -1
    cpdef object keep(self, object key, object value, Py_ssize_t bytes)
    cpdef object drop(self)
