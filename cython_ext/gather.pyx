# cython: language_level=3, boundscheck=False, wraparound=False
"""Copies between addresses, without the GIL."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "stream.h" nogil:
    void stream_copy(char *to, const char *source, size_t bytes)
    void stream_drain()

cdef enum:
    SHORT = 16384                   # giving up the GIL costs more than so short a copy
    STREAM_FROM = 4 * 1024 * 1024   # bytes; slots of batches this large, taken together, are not in a cache


cdef void copy(char *to, char **rows, Py_ssize_t count, Py_ssize_t bytes) noexcept nogil:
    cdef Py_ssize_t k
    if count * bytes < STREAM_FROM:
        for k in range(count):
            memcpy(to + k * bytes, rows[k], bytes)
    else:
        for k in range(count):
            stream_copy(to + k * bytes, rows[k], bytes)
        stream_drain()


def copy_bytes(uint64_t to, uint64_t source, Py_ssize_t bytes) -> None:
    """Copy bytes from one address to another."""
    cdef char *row = <char *>source
    if bytes < SHORT:
        memcpy(<char *>to, row, bytes)
    else:
        with nogil:
            copy(<char *>to, &row, 1, bytes)


def stack_rows(list batch, kind, uint64_t to) -> bool:
    """Copy the elements of tensors one after the other to the address `to`, as torch.stack would.

    Args:
        batch: tensors, of which the first is known to be dense, on the CPU and of exactly this kind.
        kind: torch.Tensor; a subclass is not taken for one.
        to: where the result goes; it has room for as many rows of the first one's size.

    Returns:
        False where they are not all plain contiguous tensors of one shape and dtype; nothing was copied then.
    """
    cdef Py_ssize_t k, count = len(batch), bytes
    cdef object first = batch[0], tensor, dtype = first.dtype, shape = first.shape
    cdef bint lazy = dtype.is_floating_point or dtype.is_complex    # only these may be conjugated or negated lazily
    bytes = first.nbytes
    cdef char **rows = <char **>malloc(count * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    try:
        for k in range(count):
            tensor = batch[k]
            if (type(tensor) is not kind or tensor.dtype is not dtype or not tensor.is_cpu or tensor.shape != shape
                    or not tensor.is_contiguous() or tensor.requires_grad
                    or lazy and (tensor.is_neg() or tensor.is_conj())):
                return False
            rows[k] = <char *><uint64_t>tensor.data_ptr()
        if count * bytes < SHORT:
            copy(<char *>to, rows, count, bytes)
        else:
            with nogil:
                copy(<char *>to, rows, count, bytes)
        return True
    except RuntimeError:        # a sparse or nested one has no such properties
        return False
    finally:
        free(rows)
