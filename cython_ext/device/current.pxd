# cython: language_level=3
"""Which streams of a device are current, and have been."""

from libc.stdint cimport uint64_t

# The streams of since(), and whether some of them were left.  None if one of these is foreign and may be gone, so that
# an event must stand for it.
cdef set chosen_since(uint64_t begin, bint *any_left)
# How often a stream was made current.  While this is the same, so are the streams, except those that were left longer
# ago.
cdef uint64_t switches_so_far() noexcept
