# cython: language_level=3
"""Tensors and arrays over bytes, and the places of their elements: by DLPack if torch offers it in C.
It decides which strides are kept (channels_last), and refuses tensors without memory.
"""

from contextlib import suppress

from cpython.buffer cimport Py_buffer, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t

from shmloader.core.ring cimport overwritten

import numpy
import torch

cdef extern from "batch/dlpack.h":
    enum: DLPACK_COMPLEX
    ctypedef struct dlpack_dtype:
        int code, bits, lanes
    ctypedef struct dlpack_tensor:
        int ndim
        dlpack_dtype dtype
        int64_t *shape
        int64_t *strides
    ctypedef struct dlpack_managed:
        dlpack_tensor tensor
    ctypedef struct dlpack_api:
        pass
    const dlpack_api *dlpack_in(object capsule)
    bint dlpack_read(const dlpack_api *api, object tensor, dlpack_tensor *out)
    bint dlpack_may_be_negated(const dlpack_tensor *tensor)
    bint dlpack_alike(const dlpack_tensor *a, const dlpack_tensor *b)
    bint dlpack_is_contiguous(const dlpack_tensor *tensor)
    size_t dlpack_span(const dlpack_tensor *tensor)
    size_t dlpack_bytes(const dlpack_tensor *tensor)
    char *dlpack_data(const dlpack_tensor *tensor)
    dlpack_managed *dlpack_describe(const dlpack_api *api, object owner, void *data, dlpack_dtype dtype, int ndim)
    object dlpack_make(const dlpack_api *api, dlpack_managed *managed)
    void dlpack_drop(dlpack_managed *managed)


cdef inline const dlpack_api *dlpack_of(object tensor_class) except? NULL:
    """The table of functions with which C reads and makes tensors (torch >= 2.10); NULL if torch has none."""
    return dlpack_in(getattr(tensor_class, "__dlpack_c_exchange_api__", None))


cdef object Tensor = torch.Tensor, Array = numpy.ndarray
cdef object stock_torch_function = Tensor.__torch_function__.__func__
cdef object strided = torch.strided, empty = torch.empty, uint8 = torch.uint8
cdef object from_numpy = torch.from_numpy, frombuffer = torch.frombuffer
cdef object inference_mode = torch.inference_mode
cdef const dlpack_api *dlpack = dlpack_of(Tensor)
cdef dict IN_NUMPY = {}     # torch's dtypes -> NumPy's


cpdef object tensor_over(object buffer, object dtype, Py_ssize_t at, tuple shape, tuple strides=None):
    """A tensor over a buffer, with its own storage that ends with the tensor, and that keeps the buffer alive.

    Strides are in elements; None: row-major.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    PyBuffer_Release(&view)     # the bytes stay in place while the buffer lives, and the tensor keeps it alive
    return tensor_at(buffer, <char *>view.buf, view.len, dtype, at, shape, strides)


cdef object tensor_at(object owner, char *data, Py_ssize_t bytes, object dtype, Py_ssize_t at, tuple shape,
                      tuple strides):
    """tensor_over() for so many bytes at `data`, which `owner` keeps there while it lives."""
    cdef unsigned int word = in_dlpack(dtype)
    if word:
        return made_at(owner, data, bytes, word, at, shape, strides)
    cdef object count = 1       # an object, because it must not wrap
    for side in shape:
        count *= side
    if count == 0:
        return empty(shape, dtype=dtype, device="cpu")
    if dtype in IN_NUMPY:
        return from_numpy(array_over(owner, IN_NUMPY[dtype], at, shape, strides))
    if strides is not None:
        count = 1 + sum([(side - 1) * stride for side, stride in zip(shape, strides)])
    flat = frombuffer(owner, dtype=uint8, count=count * dtype.itemsize, offset=at).view(dtype)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


cdef dict IN_DLPACK = {}    # torch's dtypes -> DLPack's code, bits and lanes in one number; 0: DLPack has none


cdef unsigned int in_dlpack(object dtype) except? 0:
    cdef object word = IN_DLPACK.get(dtype)
    if word is None:
        word = IN_DLPACK[dtype] = asked_for(dtype)
    return word


cdef object asked_for(object dtype):
    """DLPack's form of a dtype, if torch returns the same dtype from it; dtypes of less than a byte do not pass."""
    cdef dlpack_tensor one
    with suppress(RuntimeError, BufferError, NotImplementedError):
        tensor = empty(1, dtype=dtype, device="cpu")
        if dlpack_read(dlpack, tensor, &one):
            word = one.dtype.code | one.dtype.bits << 8 | one.dtype.lanes << 16
            room = bytearray(tensor.nbytes)
            if made_at(room, room, len(room), word, 0, (1,), None).dtype is dtype:
                return word
    return 0


cdef object made_at(object owner, char *data, Py_ssize_t room, unsigned int word, Py_ssize_t at, tuple shape,
                    tuple strides):
    """A tensor by DLPack, in half the time of numpy.ndarray and from_numpy, and an eighth of frombuffer and view."""
    cdef dlpack_dtype dtype
    cdef dlpack_managed *managed
    cdef dlpack_tensor *tensor
    cdef Py_ssize_t k, sides = len(shape)
    cdef uint64_t expected = 1  # it may wrap if another side is 0
    cdef size_t bytes
    dtype.code, dtype.bits, dtype.lanes = word & 0xFF, word >> 8 & 0xFF, word >> 16
    managed = dlpack_describe(dlpack, owner, data + at, dtype, sides)
    if managed == NULL:
        raise MemoryError
    try:
        tensor = &managed.tensor
        for k in range(sides - 1, -1, -1):
            tensor.shape[k] = shape[k]
            if strides is None:
                tensor.strides[k] = <int64_t>expected
            else:
                tensor.strides[k] = strides[k]
            expected *= <uint64_t>max(tensor.shape[k], 1)
        bytes = dlpack_bytes(tensor) if strides is None else dlpack_span(tensor)
        if at < 0 or bytes > <size_t>room or at > room - <Py_ssize_t>bytes:
            raise overwritten("the place of a leaf", f"{at}, of {bytes} bytes", f"in {room} bytes")
    except:
        dlpack_drop(managed)
        raise
    return dlpack_make(dlpack, managed)


cdef dict BLANKS = {}       # torch's dtypes -> a tensor without elements


cdef object tensor_in(object storage, object dtype, Py_ssize_t at, tuple shape, tuple strides):
    """A tensor over a part of a storage, which it shares with others, and of which it is no view to autograd.

    `at` is in bytes, and a multiple of an element's.  Strides are in elements; None: row-major.
    """
    cdef object blank = BLANKS.get(dtype)
    if blank is None:
        with inference_mode(False):     # outside, a tensor that was made inside could not be changed
            blank = BLANKS[dtype] = empty(0, dtype=dtype, device="cpu")
    return blank.data.set_(storage, at // dtype.itemsize, shape, () if strides is None else strides)


cdef object array_over(object buffer, object dtype, Py_ssize_t at, tuple shape, tuple strides):
    if strides is None:
        return Array(shape, dtype, buffer, at)
    return Array(shape, dtype, buffer, at, tuple([side * dtype.itemsize for side in strides]))


cdef tuple strides_of(object leaf):
    return leaf.stride() if type(leaf) is Tensor else tuple([b // leaf.itemsize for b in leaf.strides])


cdef tuple other_order(object leaf):
    """The strides, in elements, of a leaf whose elements fill their memory without gaps, but not in row-major order.

    None if there are gaps or overlaps; then its elements are copied out in row-major order.
    """
    cdef tuple shape = tuple(leaf.shape), strides = strides_of(leaf)
    cdef Py_ssize_t expected = 1
    for stride, side in sorted(zip(strides, shape)):
        if side != 1:
            if stride != expected:
                return None
            expected *= side
    return strides


cdef bint is_dense(object tensor) except -1:
    """Whether a tensor is only its elements: on the CPU, strided, neither nested nor quantised."""
    cdef dlpack_tensor _
    if dlpack_read(dlpack, tensor, &_):
        return True
    return tensor.layout is strided and tensor.is_cpu and not tensor.is_nested and not tensor.is_quantized


cdef tuple look_at(object leaf, elements *of):
    """The place and layout of a leaf's elements; returns its shape."""
    cdef dlpack_tensor tensor
    cdef bint is_tensor = type(leaf) is Tensor
    if is_tensor and dlpack_read(dlpack, leaf, &tensor):
        of.address, of.bytes = <uint64_t>dlpack_data(&tensor), dlpack_bytes(&tensor)
        of.dense = dlpack_is_contiguous(&tensor)
        of.lazy = dlpack_may_be_negated(&tensor) and leaf.is_neg()
        of.lazy |= tensor.dtype.code == DLPACK_COMPLEX and leaf.is_conj()
        of.span = 0 if of.lazy else of.bytes if of.dense else dlpack_span(&tensor)
        return tuple([tensor.shape[k] for k in range(tensor.ndim)])
    of.address = leaf.data_ptr() if is_tensor else leaf.ctypes.data
    of.bytes = min(leaf.nbytes, <object>PY_SSIZE_T_MAX)     # as dlpack_bytes(): an expanded one may have any size
    of.dense = leaf.is_contiguous() if is_tensor else leaf.flags.c_contiguous
    of.lazy = is_tensor and (leaf.is_neg() or leaf.is_conj())
    of.span = of.bytes if of.dense and of.address and not of.lazy else 0
    if of.bytes and of.address and not of.dense and not of.lazy:
        of.span = span_of(leaf, of.bytes)
    return tuple(leaf.shape)


cdef Py_ssize_t span_of(object leaf, Py_ssize_t bytes):
    """elements.span of a leaf that is not dense.  That of an array is 0 unless it fills its bytes."""
    cdef object last = 0
    for side, stride in zip(leaf.shape, strides_of(leaf)):
        last += (side - 1) * stride
    last = min((last + 1) * leaf.itemsize, <object>PY_SSIZE_T_MAX)
    return last if type(leaf) is Tensor or last == bytes else 0


cdef object unequal(object shape, Py_ssize_t at, object other, Py_ssize_t other_at):
    """torch.stack's own error text, with positions in the whole batch."""
    return RuntimeError(f"stack expects each tensor to be equal size, but got {list(shape)} at entry {at} and "
                        f"{list(other)} at entry {other_at}")


cdef object of_its_class(object first, object room):
    """A tensor over the memory of `room`, for stacking rows like `first`.

    It is made as torch's collate_tensor_fn makes it, so that the class of `first` can take part.
    """
    return first.new(room.untyped_storage()).resize_(*room.shape)


cdef bint are_stacked_alike(object batch, object rows) except -1:
    """Whether torch.stack only copies the elements of tensors of these classes.

    Args:
        batch: tensors, perhaps of subclasses.
        rows: the elements of each, as plain tensors; or `batch` itself, if its tensors are plain.
    """
    if rows is batch:
        return True
    cdef object kind = type(batch[0])
    if getattr(kind.__torch_function__, "__func__", None) is not stock_torch_function:
        return False
    for tensor in batch:
        if type(tensor) is not kind:
            return False
    return True


cdef int check_memory(object leaf, elements *of) except -1:
    """Refuse a leaf that has a shape, and no memory."""
    if of.address == 0 and of.bytes:
        raise RuntimeError(f"a tensor of {of.bytes} bytes, of shape {list(leaf.shape)}, has no memory. Its storage was "
                           f"resized to 0, or torch allocated none. Return a clone() made while it had memory.")
    return 0


include "batch/gather.pxi"
include "batch/columns.pxi"
