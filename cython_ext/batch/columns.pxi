"""Columns of Python's and NumPy's numbers and arrays, read directly from the objects.

Only plain columns are read here: all rows of exactly one class, dtype and shape.  torch collates, or refuses, all other
columns: booleans among integers, subclasses, read-only or strided arrays, integers of more than 64 bits.
"""

from contextlib import suppress

from cpython.float cimport PyFloat_AS_DOUBLE

import numpy
import torch

cdef extern from "Python.h":
    int64_t PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    ctypedef struct PyObject:
        pass
    PyObject *PySequence_Fast_GET_ITEM(object sequence, Py_ssize_t k)   # borrowed, of a list or a tuple

cdef extern from "batch/numpy_memory.h":
    ctypedef struct numpy_array:
        char *data
        int sides
        Py_ssize_t *shape
        Py_ssize_t *strides
        PyObject *dtype
    const numpy_array *numpy_head(object array)
    const char *numpy_element(object scalar)
    Py_ssize_t numpy_dense_bytes(const numpy_array *array, Py_ssize_t item)
    bint numpy_is_nan(const char *at, Py_ssize_t item, int part)
    bint numpy_same_shape(const numpy_array *a, const numpy_array *b)

cdef object int64 = torch.int64, float64 = torch.float64, torch_bool = torch.bool
# NumPy's classes of scalars -> torch's dtype, the size, and that of its floating-point parts, or 0
cdef dict SCALARS = {}
cdef dict PARTS = {"f": 1, "c": 2}     # kinds of NumPy's dtypes -> the number of floating-point numbers in an element
cdef dict ARRAYS = {}       # NumPy's dtypes -> torch's, and the size


def learn() -> None:
    """Find torch's dtype for each of NumPy's, and check that NumPy's objects have the layout that we read."""
    for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                 "float64", "complex64", "complex128"):
        dtype = numpy.dtype(name)
        with suppress(TypeError, ValueError, RuntimeError):     # torch has no such dtype
            of_torch = from_numpy(numpy.empty(0, dtype)).dtype
            IN_NUMPY[of_torch] = dtype
            if are_arrays_as_read(dtype):
                ARRAYS[dtype] = of_torch, dtype.itemsize
        scalars = [dtype.type(value) for value in (0, 1, 113)]
        with suppress(TypeError, ValueError, RuntimeError):
            made = torch.as_tensor(scalars, device="cpu")   # which torch refuses for uint64
            if made.numpy().tobytes() == b"".join([scalar.tobytes() for scalar in scalars]) == bytes_of(scalars):
                part = dtype.itemsize // PARTS[dtype.kind] if dtype.kind in PARTS else 0
                SCALARS[dtype.type] = made.dtype, dtype.itemsize, part


cdef bytes bytes_of(list scalars):
    return b"".join([numpy_element(scalar)[:scalar.dtype.itemsize] for scalar in scalars])


cdef bint are_arrays_as_read(object dtype) except -1:
    """Whether we read the head of an array as NumPy does, for one that owns its memory and for a view."""
    cdef const numpy_array *head
    cdef Py_ssize_t k
    for array in (numpy.zeros((2, 3, 5), dtype), numpy.zeros((7, 3), dtype)[1::2, :2], numpy.zeros((), dtype)):
        head = numpy_head(array)
        if <uint64_t>head.data != array.ctypes.data or head.sides != array.ndim:
            return False
        if <object>head.dtype is not array.dtype:
            return False
        for k in range(array.ndim):
            if head.shape[k] != array.shape[k] or head.strides[k] != array.strides[k]:
                return False
        for writeable in (True, False):
            array.flags.writeable = writeable
            if (numpy_dense_bytes(head, array.itemsize) >= 0) != (writeable and array.flags.c_contiguous):
                return False
    return True


cdef bint is_scalar(object kind) except -1:
    return kind in SCALARS


cdef object number_dtype(object first, column *of):
    cdef object kind = type(first), known
    of.item = of.bytes = 8
    if kind is int:
        return int64
    if kind is float:
        return float64
    if kind is bool:
        of.item = of.bytes = 1
        return torch_bool
    known = SCALARS.get(kind)
    if known is None:
        return None
    of.item = of.bytes = known[1]
    return known[0]


cdef bint numbers_into(object batch, column *of, uint64_t to) except -1:
    """Write all numbers of a list or a tuple, one after the other, as torch.tensor converts them."""
    cdef object kind = type(batch[0])
    if kind is int:
        return integers_into(batch, <int64_t *>to)
    if kind is float:
        return floats_into(batch, <double *>to)
    if kind is bool:
        return booleans_into(batch, <char *>to)
    return scalars_into(batch, kind, of.item, <char *>to)


cdef bint integers_into(object batch, int64_t *to) except -1:
    cdef Py_ssize_t k
    cdef int over = 0
    for k in range(len(batch)):
        number = <object>PySequence_Fast_GET_ITEM(batch, k)
        if type(number) is not int:
            return False
        to[k] = PyLong_AsLongLongAndOverflow(number, &over)
        if over:
            return False
    return True


cdef bint floats_into(object batch, double *to) except -1:
    cdef Py_ssize_t k
    for k in range(len(batch)):
        number = <object>PySequence_Fast_GET_ITEM(batch, k)
        if type(number) is not float:
            return False
        to[k] = PyFloat_AS_DOUBLE(number)
    return True


cdef bint booleans_into(object batch, char *to) except -1:
    cdef Py_ssize_t k
    for k in range(len(batch)):
        number = <object>PySequence_Fast_GET_ITEM(batch, k)
        if number is not True and number is not False:
            return False
        to[k] = number is True
    return True


cdef bint scalars_into(object batch, object kind, Py_ssize_t item, char *to) except -1:
    """Write NumPy's scalars.  torch converts other objects by way of a double, which may change their bits."""
    cdef Py_ssize_t k
    cdef int part = SCALARS[kind][2]
    for k in range(len(batch)):
        scalar = <object>PySequence_Fast_GET_ITEM(batch, k)
        if type(scalar) is not kind or part and numpy_is_nan(numpy_element(scalar), item, part):
            return False
        memcpy(to + k * item, numpy_element(scalar), item)
    return True


cdef object array_dtype(object first, column *of):
    cdef object known
    if type(first) is not Array or not ARRAYS:
        return None
    known = ARRAYS.get(<object>numpy_head(first).dtype)
    if known is None:
        return None
    of.item = known[1]
    of.bytes = numpy_dense_bytes(numpy_head(first), of.item)
    return known[0] if of.bytes > 0 else None


cdef tuple array_shape(object first):
    cdef const numpy_array *head = numpy_head(first)
    cdef int k
    return tuple([head.shape[k] for k in range(head.sides)])


cdef bint arrays_at(object batch, column *of, char **rows) except -1:
    cdef const numpy_array *first = numpy_head(batch[0])
    cdef const numpy_array *head
    cdef Py_ssize_t k
    for k in range(len(batch)):
        array = <object>PySequence_Fast_GET_ITEM(batch, k)
        if type(array) is not Array:
            return False
        head = numpy_head(array)
        if head.dtype != first.dtype and <object>head.dtype != <object>first.dtype:     # unpickled ones differ
            return False
        if not numpy_same_shape(head, first) or numpy_dense_bytes(head, of.item) != of.bytes:
            return False
        rows[k] = head.data
    return True


learn()
