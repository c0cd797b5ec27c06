# cython: language_level=3, boundscheck=False, wraparound=False
"""What the benches measure with: nothing here is on the way of a batch."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from "stream.h" nogil:
    void stream_copy(char *to, const char *source, size_t bytes)
    void stream_drain()


def touch_pages(uint64_t address, Py_ssize_t bytes) -> int:
    """Read one byte of every 4 KiB page, so that the pages are there; returns their sum."""
    cdef Py_ssize_t k = 0
    cdef int total = 0
    with nogil:
        while k < bytes:
            total += (<const unsigned char *>address)[k]
            k += 4096
    return total


def copy_rows(uint64_t to, uint64_t row, Py_ssize_t bytes, int count) -> None:
    """Copy one row `count` times, one after the other, with memcpy: the least that plain collating can cost."""
    cdef Py_ssize_t k
    with nogil:
        for k in range(count):
            memcpy(<char *>to + k * bytes, <char *>row, bytes)


def stream_rows(uint64_t to, uint64_t row, Py_ssize_t bytes, int count) -> None:
    """copy_rows() with the streaming stores that carry large batches: the destination is not read before it is written."""
    cdef Py_ssize_t k
    with nogil:
        for k in range(count):
            stream_copy(<char *>to + k * bytes, <char *>row, bytes)
        stream_drain()
