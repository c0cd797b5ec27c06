# cython: language_level=3
"""The tasks that a worker looks at before it claims them."""

from libc.stdint cimport uint64_t

from shmloader.core.ring cimport Ring

cdef list upcoming(Ring ring, int worker, uint64_t claimed, uint64_t after, int most)
