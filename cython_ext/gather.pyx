# cython: language_level=3, boundscheck=False, wraparound=False
"""Copies between addresses, without the GIL."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "dlpack.h":
    ctypedef struct dlpack_version:
        int major
    ctypedef struct dlpack_tensor:
        void *data
        uint64_t byte_offset
    ctypedef struct dlpack_api:
        dlpack_version version
        int (*read)(void *object, dlpack_tensor *out) except -1
    bint dlpack_alike(const dlpack_tensor *a, const dlpack_tensor *b)
    bint dlpack_is_contiguous(const dlpack_tensor *tensor)

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
    if bytes == 0:      # an empty tensor's address is 0, which memcpy does not allow even for no bytes
        return
    if bytes < SHORT:
        memcpy(<char *>to, row, bytes)
    else:
        with nogil:
            copy(<char *>to, &row, 1, bytes)


cdef dlpack_api *dlpack = NULL


def read_tensors_with(capsule) -> None:
    """Have stack_rows() read tensors through torch's DLPack C interface (a capsule, _torch.dlpack_c_api)."""
    global dlpack
    cdef dlpack_api *api = <dlpack_api *>PyCapsule_GetPointer(capsule, "dlpack_exchange_api")
    if api.version.major == 1 and api.read != NULL:
        dlpack = api


def stack_rows(list batch, kind, uint64_t to) -> bool:
    """Copy the elements of tensors one after the other to the address `to`, as torch.stack would.

    Args:
        batch: tensors, of which the first is known to be dense, on the CPU and of exactly this kind.
        kind: torch.Tensor; a subclass is not taken for one.
        to: where the result goes; it has room for as many rows of the first one's size.

    Returns:
        False where they are not all plain contiguous tensors of one shape and dtype; nothing was copied then.
    """
    if dlpack == NULL:
        return False
    cdef Py_ssize_t k, count = len(batch), bytes = batch[0].nbytes
    cdef object tensor, dtype = batch[0].dtype
    cdef bint is_complex = dtype.is_complex, may_be_negated = is_complex or dtype.is_floating_point
    cdef dlpack_tensor first, row
    cdef char **rows = <char **>malloc(count * sizeof(char *))
    if rows == NULL:
        raise MemoryError()
    try:
        dlpack.read(<void *>batch[0], &first)
        for k in range(count):
            tensor = batch[k]
            if type(tensor) is not kind or tensor.requires_grad:
                return False
            dlpack.read(<void *>tensor, &row)
            if not dlpack_alike(&first, &row) or not dlpack_is_contiguous(&row):
                return False
            if may_be_negated and tensor.is_neg() or is_complex and tensor.is_conj():
                return False
            rows[k] = <char *>row.data + row.byte_offset
        if count * bytes < SHORT:
            copy(<char *>to, rows, count, bytes)
        else:
            with nogil:
                copy(<char *>to, rows, count, bytes)
        return True
    except (RuntimeError, BufferError):     # DLPack cannot say what it is: sparse, nested, without memory
        return False
    finally:
        free(rows)
