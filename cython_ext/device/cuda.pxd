# cython: language_level=3
"""What the parts of cuda.pyx declare."""

from libc.stdint cimport uint64_t

# ----------------------------------------------------------------------------------------------------- cuda_driver.pxi

cdef enum:
    NOT_IN_USE = -1             # of enter(): this process has no context there, and gets none


cdef class Event:
    cdef void *handle           # NULL until it is recorded
    cdef int device
    cdef bint is_of_a_capture   # it may belong to a capture, so it must be neither queried nor recorded again

cdef uint64_t captures_so_far() noexcept

# Each returns the driver's error, or 0.
cdef int exchange_mode(int *mode) noexcept nogil
cdef int enter(int device) noexcept nogil                   # its context is current in this thread until leave()
cdef void leave() noexcept nogil
cdef int find_capture(void *stream, int *found) noexcept nogil
cdef int record_event(void **event, void *stream) noexcept nogil    # on a stream of the device that was entered
cdef int ask_event(void *event, bint *passed) noexcept nogil


# --------------------------------------------------------------------------------------------------------- current.pxi

# The streams of since(), and whether some of them were left.  None if one of these is foreign and may be gone, so that
# an event must stand for it.
cdef set chosen_since(uint64_t begin, bint *any_left)
# How often a stream was made current.  While this is the same, so are the streams, except those that were left longer
# ago.
cdef uint64_t switches_so_far() noexcept
