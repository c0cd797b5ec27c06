# cython: language_level=3, boundscheck=False, wraparound=False
"""Copies between addresses without the GIL, and the touch that a bench needs to be fair."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy


def copy_rows(uint64_t to, const uint64_t[::1] rows, Py_ssize_t bytes, int repeats=1) -> None:
    """Copy rows of `bytes` bytes each, one after the other, to the address `to`.

    One memcpy a row: the least that collating a batch of same-sized samples can cost.
    """
    cdef Py_ssize_t k
    cdef int r
    with nogil:
        for r in range(repeats):
            for k in range(rows.shape[0]):
                memcpy(<char *>to + k * bytes, <char *>rows[k], bytes)


def touch_pages(uint64_t address, Py_ssize_t bytes) -> int:
    """Read one byte of every 4 KiB page, so that the pages are there; returns their sum."""
    cdef Py_ssize_t k = 0
    cdef int total = 0
    with nogil:
        while k < bytes:
            total += (<const unsigned char *>address)[k]
            k += 4096
    return total
