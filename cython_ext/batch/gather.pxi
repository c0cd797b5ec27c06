"""Copies bytes, and stacks rows of tensors as torch.stack does.
It decides from which size on a copy gives up the GIL, and from which size on it goes past the cache.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import torch

cdef extern from "batch/nontemporal.h" nogil:
    void stream_copy(char *to, const char *source, size_t bytes)
    void stream_drain()

cdef enum:
    SHORT = 16384                   # bytes: giving up the GIL costs more than so short a copy
    STREAM_FROM = 4 * 1024 * 1024   # bytes: all slots together of batches this large do not fit into a cache


cdef void copy(char *to, char **rows, Py_ssize_t count, Py_ssize_t bytes) noexcept nogil:
    cdef Py_ssize_t k
    if count * bytes < STREAM_FROM:
        for k in range(count):
            memcpy(to + k * bytes, rows[k], bytes)
    else:
        for k in range(count):
            stream_copy(to + k * bytes, rows[k], bytes)
        stream_drain()


cpdef int copy_bytes(uint64_t to, uint64_t source, Py_ssize_t bytes) except -1:
    """Copy bytes from one address to another."""
    cdef char *row = <char *>source
    if bytes == 0:      # an empty tensor's address is 0, which memcpy does not allow even for no bytes
        return 0
    if bytes < SHORT:
        memcpy(<char *>to, row, bytes)
    else:
        with nogil:
            copy(<char *>to, &row, 1, bytes)
    return 0


cdef int copy_rows(uint64_t to, char **rows, Py_ssize_t count, Py_ssize_t bytes) except -1:
    """Copy rows of the same number of bytes, one after the other, to the address `to`."""
    if count * bytes < SHORT:
        copy(<char *>to, rows, count, bytes)
    else:
        with nogil:
            copy(<char *>to, rows, count, bytes)
    return 0


cdef inline bint is_row(object tensor, const dlpack_tensor *first, dlpack_tensor *row) except -1:
    """Whether a tensor is plain and contiguous, of the first one's shape and dtype; then `row` describes it."""
    if type(tensor) is not Tensor or tensor.requires_grad or not dlpack_read(dlpack, tensor, row):
        return False
    if not dlpack_alike(first, row) or not dlpack_is_contiguous(row):
        return False
    return not (dlpack_may_be_negated(row) and tensor.is_neg() or row.dtype.code == DLPACK_COMPLEX and tensor.is_conj())


cpdef bint stack_rows(list batch, uint64_t to) except -1:
    """Copy the elements of tensors one after the other to the address `to`, as torch.stack would.

    Args:
        batch: perhaps tensors.
        to: the destination, with room for as many rows of the first one's size.

    Returns:
        False if they are not all plain contiguous tensors of one shape and dtype; then nothing was copied.
    """
    cdef Py_ssize_t k, count = len(batch), bytes
    cdef dlpack_tensor first, row
    if not dlpack_read(dlpack, batch[0], &first):
        return False
    bytes = dlpack_bytes(&first)
    cdef char **rows = <char **>malloc(count * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    try:
        for k in range(count):
            if not is_row(batch[k], &first, &row):
                return False
            rows[k] = dlpack_data(&row)
        copy_rows(to, rows, count, bytes)
        return True
    finally:
        free(rows)


cpdef bint rows_lie_at(object batch, uint64_t at) except -1:
    """Whether tensors are plain, contiguous, of one shape and dtype, and lie one after the other from the address `at`
    on, which is where torch.stack's result would go."""
    cdef dlpack_tensor first, row
    cdef object tensor
    if not dlpack:
        return lie_at(batch, at)
    if not dlpack_read(dlpack, batch[0], &first):
        return False
    for tensor in batch:
        if not is_row(tensor, &first, &row) or <uint64_t>dlpack_data(&row) != at:
            return False
        at += dlpack_bytes(&row)
    return True


cdef bint lie_at(object batch, uint64_t at) except -1:
    """rows_lie_at() by torch's Python functions, because torch before 2.10 has no DLPack in C."""
    cdef object tensor, first = batch[0]
    for tensor in batch:
        if type(tensor) is not Tensor or tensor.requires_grad or tensor.layout is not strided or not tensor.is_cpu:
            return False
        if tensor.is_nested or tensor.is_quantized or tensor.dtype is not first.dtype or tensor.shape != first.shape:
            return False
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj() or tensor.data_ptr() != at:
            return False
        at += tensor.nbytes
    return True
