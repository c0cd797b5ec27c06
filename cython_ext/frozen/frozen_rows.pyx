# cython: language_level=3, boundscheck=False, wraparound=False
"""The rows of frozen lists and dicts: bytes of which Python's objects are made when they are asked for.
A spawned worker gets a descriptor of the bytes, and any other pickle has a copy of them.

NOTE [ Columns ]

A list of a million strings is a million objects.  Each has a reference count, so reading it writes to its page: a
forked worker copies each page that it reads.  A spawned worker makes all objects again.  A column holds the same items
as bytes.  No process changes them, so all processes of a machine can map one copy.

A layout says where the bytes of a column are.  It is a tuple: the name of a kind, then the parameters of that kind.
Places are counted from the first byte of the column's pages.  `shmloader.frozen.pack` writes the bytes, and the classes
here read them.

    ("nones",)                                  None in each row
    ("bools", place)                            a byte each
    ("ints", place, width)                      signed, of 1, 2, 4 or 8 bytes
    ("floats", place)                           doubles, with all of a NaN's bits
    ("scalars", place, dtype)                   NumPy's scalars
    ("text", ends, width, place)                UTF-8, in which surrogates are allowed
    ("bytes", ends, width, place)
    ("values", ends, width, place)              anything else that marshal can write, each row separately
    ("arrays", ends, width, place, dtype, shapes, sides)    NumPy's arrays of one dtype, each with `sides` dimensions
    ("tuples", class, layouts)                  tuples of one length; a class of named tuples, or None
    ("dicts", keys, layouts)                    dicts with the same keys in the same order
    ("lists", ends, width, layout, as_tuple)    lists, or tuples, of any length: their items follow one another

`ends` holds rows + 1 unsigned numbers of `width` bytes each: for each row, where its first item begins, and then where
the last row ends.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_SetItem
from cpython.float cimport PyFloat_FromDouble
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint32_t, uint64_t

from multiprocessing.context import get_spawning_popen

import numpy

cdef extern from "marshal.h":
    object PyMarshal_ReadObjectFromString(const char *data, Py_ssize_t bytes)

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t bytes, const char *errors)
    object PyLong_FromLongLong(long long number)


cdef class Pages:
    """The bytes of some columns, in memory that stays where it is.

    While a process is being spawned, they are pickled as the memory's descriptor.  Otherwise they are pickled as a copy
    of the bytes, so that a file, a deep copy or another machine has all of them.

    Args:
        memory: A mapping that is shared, or bytes.
        place: Where the pages begin in it, a multiple of 64.
        size: How many bytes they have.

    Raises:
        ValueError: The memory has fewer bytes.
    """

    def __cinit__(self, object memory, Py_ssize_t place, Py_ssize_t size):
        PyObject_GetBuffer(memory, &self.held, PyBUF_SIMPLE)
        self.is_held = True
        if place < 0 or size < 0 or place > self.held.len - size:
            raise ValueError(f"bytes {place} to {place + size} of a memory of {self.held.len} bytes")
        self.memory, self.place, self.size = memory, place, size
        self.first = <const char *>self.held.buf + place

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.held)

    def __reduce__(self):
        if get_spawning_popen() is not None:
            return Pages, (self.memory, self.place, self.size)
        return Pages, (bytearray(self.first[:self.size]), 0, self.size)

    cdef const char *at(self, Py_ssize_t place, Py_ssize_t count, Py_ssize_t width) except NULL:
        """Where `count` items of `width` bytes begin, which the pages must have."""
        if place < 0 or count < 0 or width < 0 or place > self.size or (width and count > (self.size - place) // width):
            raise ValueError(f"{count} items of {width} bytes from byte {place} on, in pages of {self.size} bytes")
        return self.first + place


# ------------------------------------------------------------------------------------------------ one class a kind

cdef class Rows:
    """Makes the object of a row.  This one: None."""

    cdef object row(self, Py_ssize_t k):
        return None


cdef class Bools(Rows):
    cdef const char *bytes

    cdef object row(self, Py_ssize_t k):
        return self.bytes[k] != 0


cdef class Ints(Rows):
    cdef const char *bytes
    cdef int width

    cdef object row(self, Py_ssize_t k):
        if self.width == 1:
            return PyLong_FromLongLong((<const int8_t *>self.bytes)[k])
        if self.width == 2:
            return PyLong_FromLongLong((<const int16_t *>self.bytes)[k])
        if self.width == 4:
            return PyLong_FromLongLong((<const int32_t *>self.bytes)[k])
        return PyLong_FromLongLong((<const int64_t *>self.bytes)[k])


cdef class Floats(Rows):
    cdef const double *numbers

    cdef object row(self, Py_ssize_t k):
        return PyFloat_FromDouble(self.numbers[k])


cdef class Scalars(Rows):
    cdef object array

    cdef object row(self, Py_ssize_t k):
        return self.array[k]


cdef class Spans(Rows):
    """Rows of different lengths.  This one: bytes."""

    cdef const char *ends
    cdef const char *bytes
    cdef int width

    cdef inline Py_ssize_t begin(self, Py_ssize_t k) noexcept:
        if self.width == 4:
            return (<const uint32_t *>self.ends)[k]
        return <Py_ssize_t>(<const uint64_t *>self.ends)[k]

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t at = self.begin(k)
        return PyBytes_FromStringAndSize(self.bytes + at, self.begin(k + 1) - at)


cdef class Text(Spans):
    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t at = self.begin(k)
        return PyUnicode_DecodeUTF8(self.bytes + at, self.begin(k + 1) - at, "surrogatepass")


cdef class Values(Spans):
    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t at = self.begin(k)
        return PyMarshal_ReadObjectFromString(self.bytes + at, self.begin(k + 1) - at)


cdef class Arrays(Spans):
    """Each row is an array over the pages themselves: what a user writes into it stays in this process."""

    cdef object all, dtype
    cdef const int64_t *shapes
    cdef int sides

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t side
        shape = tuple([self.shapes[k * self.sides + side] for side in range(self.sides)])
        return self.all[self.begin(k):self.begin(k + 1)].view(self.dtype).reshape(shape)


cdef class Lists(Spans):
    cdef Rows items
    cdef bint as_tuple

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t at = self.begin(k), i, count = self.begin(k + 1) - at
        if self.as_tuple:
            made = PyTuple_New(count)
            for i in range(count):
                item = self.items.row(at + i)
                Py_INCREF(item)
                PyTuple_SET_ITEM(made, i, item)
            return made
        made = PyList_New(count)
        for i in range(count):
            item = self.items.row(at + i)
            Py_INCREF(item)
            PyList_SET_ITEM(made, i, item)
        return made


cdef class Tuples(Rows):
    cdef object kind        # a class of named tuples, or None
    cdef list parts

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t i, count = len(self.parts)
        made = PyTuple_New(count)
        for i in range(count):
            item = (<Rows>self.parts[i]).row(k)
            Py_INCREF(item)
            PyTuple_SET_ITEM(made, i, item)
        return made if self.kind is None else tuple.__new__(self.kind, made)


cdef class Dicts(Rows):
    cdef tuple keys
    cdef list parts

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t i
        cdef dict made = {}
        for i in range(len(self.parts)):
            PyDict_SetItem(made, self.keys[i], (<Rows>self.parts[i]).row(k))
        return made


cdef Rows read(tuple layout, Pages pages, Py_ssize_t count):
    """The object that reads `count` rows of a layout.

    Raises:
        ValueError: They do not fit into the pages, or the layout is of another version.
    """
    cdef Rows rows
    kind = layout[0]
    if kind == "nones":
        rows = Rows()
    elif kind == "bools":
        rows = read_bools(layout[1], pages, count)
    elif kind == "ints":
        rows = read_ints(layout[1], layout[2], pages, count)
    elif kind == "floats":
        rows = read_floats(layout[1], pages, count)
    elif kind == "scalars":
        rows = read_scalars(layout[1], layout[2], pages, count)
    elif kind in ("text", "bytes", "values", "arrays", "lists"):
        rows = read_spans(layout, pages, count)
    elif kind == "tuples":
        rows = read_tuples(layout[1], layout[2], pages, count)
    elif kind == "dicts":
        rows = read_dicts(layout[1], layout[2], pages, count)
    else:
        raise ValueError(f"a column of {kind!r}, which this version of shmloader does not know")
    rows.pages = pages
    return rows


cdef Bools read_bools(Py_ssize_t place, Pages pages, Py_ssize_t count):
    cdef Bools rows = Bools()
    rows.bytes = pages.at(place, count, 1)
    return rows


cdef Ints read_ints(Py_ssize_t place, int width, Pages pages, Py_ssize_t count):
    cdef Ints rows = Ints()
    rows.bytes, rows.width = pages.at(place, count, width), width
    return rows


cdef Floats read_floats(Py_ssize_t place, Pages pages, Py_ssize_t count):
    cdef Floats rows = Floats()
    rows.numbers = <const double *>pages.at(place, count, 8)
    return rows


cdef Scalars read_scalars(Py_ssize_t place, object dtype, Pages pages, Py_ssize_t count):
    cdef Scalars rows = Scalars()
    pages.at(place, count, dtype.itemsize)
    rows.array = numpy.frombuffer(pages.memory, dtype, count, pages.place + place)
    return rows


cdef Spans read_spans(tuple layout, Pages pages, Py_ssize_t count):
    cdef Spans rows = {"text": Text, "bytes": Spans, "values": Values, "arrays": Arrays, "lists": Lists}[layout[0]]()
    cdef Py_ssize_t k, last
    rows.width = layout[2]
    rows.ends = pages.at(layout[1], count + 1, rows.width)
    last = rows.begin(count)
    for k in range(count):
        if rows.begin(k) > rows.begin(k + 1):
            raise ValueError(f"row {k} of a column ends before it begins")
    if layout[0] == "lists":
        (<Lists>rows).items, (<Lists>rows).as_tuple = read(layout[3], pages, last), layout[4]
        return rows
    rows.bytes = pages.at(layout[3], last, 1)
    if layout[0] == "arrays":
        read_arrays(<Arrays>rows, layout, pages, count, last)
    return rows


cdef bint read_arrays(Arrays rows, tuple layout, Pages pages, Py_ssize_t count, Py_ssize_t last) except -1:
    rows.dtype, rows.sides = layout[4], layout[6]
    rows.shapes = <const int64_t *>pages.at(layout[5], count * rows.sides, 8)
    rows.all = numpy.frombuffer(pages.memory, numpy.uint8, last, pages.place + layout[3])
    return True


cdef Tuples read_tuples(object kind, tuple layouts, Pages pages, Py_ssize_t count):
    cdef Tuples rows = Tuples()
    rows.kind, rows.parts = kind, [read(part, pages, count) for part in layouts]
    return rows


cdef Dicts read_dicts(tuple keys, tuple layouts, Pages pages, Py_ssize_t count):
    cdef Dicts rows = Dicts()
    rows.keys, rows.parts = keys, [read(part, pages, count) for part in layouts]
    return rows


include "frozen/frozen_list.pxi"
include "frozen/frozen_dict.pxi"
