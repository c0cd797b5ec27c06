# cython: language_level=3
"""Which pages of the slots this process has mapped."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef class MappedPages:
    cdef uint64_t first, most       # the first piece of the mapping, and how many it has
    cdef uint32_t folds             # of the ring, when the pieces were noted
    cdef uint8_t *mapped            # for each piece, whether it was mapped; a page of it for each 256 MiB used

    cdef int follow(self, uint32_t folds) except -1
    cdef int before_write(self, uint64_t address, uint64_t bytes, uint64_t fresh) except -1
