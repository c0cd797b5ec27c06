"""clock.h for Cython."""

from libc.stdint cimport int64_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

cdef extern from "clock.h" nogil:
    uint64_t now "clock_now"()


cdef inline bint until(double seconds, timespec *deadline) noexcept nogil:
    """The deadline `seconds` from now; false where there is none (seconds < 0)."""
    cdef int64_t nanoseconds
    if seconds < 0:
        return False
    clock_gettime(CLOCK_MONOTONIC, deadline)
    nanoseconds = <int64_t>(min(seconds, 1e9) * 1e9) + deadline.tv_nsec
    deadline.tv_sec += nanoseconds // 1000000000
    deadline.tv_nsec = nanoseconds % 1000000000
    return True
