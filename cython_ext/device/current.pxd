# cython: language_level=3
"""Which streams of a device are current, and have been."""

from libc.stdint cimport uint64_t

# The streams that since() has, and whether some of them were left.  None where others have made one of these and it may
# be gone, so that it counts by an event.
cdef set chosen_since(uint64_t begin, bint *any_left)
# How often a stream was made current: while that is the same, so are they, but for those that were left for longer.
cdef uint64_t switches_so_far() noexcept
