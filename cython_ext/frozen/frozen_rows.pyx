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
    ("numbers", place, dtype)                   Python's bool, int or float
    ("scalars", place, dtype)                   NumPy's scalars
    ("text", ends, width, place)                UTF-8, in which surrogates are allowed
    ("bytes", ends, width, place)
    ("values", ends, width, place)              anything else that marshal can write, also lists and sets
    ("arrays", ends, width, place, dtype, shapes, sides)    NumPy's arrays of one dtype, each with `sides` dimensions
    ("tuples", layouts)                         tuples of one length
    ("dicts", layouts, keys)                    dicts with the same keys in the same order

`ends` holds rows + 1 unsigned numbers of `width` bytes each: for each row, where its first item begins, and then where
the last row ends.
"""

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_SetItem
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint32_t, uint64_t

from multiprocessing.context import get_spawning_popen

import numpy

cdef extern from "marshal.h":
    object PyMarshal_ReadObjectFromString(const char *data, Py_ssize_t bytes)

cdef extern from "Python.h":
    object PyUnicode_DecodeUTF8(const char *data, Py_ssize_t bytes, const char *errors)


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

    cdef readonly object memory
    cdef readonly Py_ssize_t place, size
    cdef Py_buffer held
    cdef bint is_held
    cdef const char *first

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
    """Makes the object of a row.  This one: None.

    Args:
        layout: How the rows lie in the pages.
        pages: The bytes.
        count: How many rows there are.

    Raises:
        ValueError: They do not fit into the pages.
    """

    cdef Pages pages        # keeps the bytes

    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        self.pages = pages

    cdef object row(self, Py_ssize_t k):
        return None


cdef class Scalars(Rows):
    cdef object items

    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        dtype = numpy.dtype(layout[2])
        pages.at(layout[1], count, dtype.itemsize)
        self.items = numpy.frombuffer(pages.memory, dtype, count, pages.place + layout[1])

    cdef object row(self, Py_ssize_t k):
        return self.items[k]


cdef class Numbers(Scalars):
    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        self.items = self.items.data        # a memoryview, which makes Python's own numbers


cdef class Spans(Rows):
    """Rows of different lengths.  This one: bytes."""

    cdef const char *ends
    cdef const char *bytes
    cdef int width

    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        cdef Py_ssize_t k
        self.width = layout[2]
        self.ends = pages.at(layout[1], count + 1, self.width)
        for k in range(count):
            if self.begin(k) > self.begin(k + 1):
                raise ValueError(f"row {k} of a column ends before it begins")
        self.bytes = pages.at(layout[3], self.begin(count), 1)

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

    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        self.dtype, self.sides = layout[4], layout[6]
        self.shapes = <const int64_t *>pages.at(layout[5], count * self.sides, 8)
        self.all = numpy.frombuffer(pages.memory, numpy.uint8, self.begin(count), pages.place + layout[3])

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t side
        shape = tuple([self.shapes[k * self.sides + side] for side in range(self.sides)])
        return self.all[self.begin(k):self.begin(k + 1)].view(self.dtype).reshape(shape)


cdef class Tuples(Rows):
    cdef list parts

    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        self.parts = [read(part, pages, count) for part in layout[1]]

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t i, count = len(self.parts)
        made = PyTuple_New(count)
        for i in range(count):
            item = (<Rows>self.parts[i]).row(k)
            Py_INCREF(item)
            PyTuple_SET_ITEM(made, i, item)
        return made


cdef class Dicts(Tuples):
    cdef tuple keys

    def __cinit__(self, tuple layout, Pages pages, Py_ssize_t count):
        self.keys = layout[2]

    cdef object row(self, Py_ssize_t k):
        cdef Py_ssize_t i
        cdef dict made = {}
        for i in range(len(self.parts)):
            PyDict_SetItem(made, self.keys[i], (<Rows>self.parts[i]).row(k))
        return made


cdef dict KINDS = {
    "nones": Rows,
    "numbers": Numbers,
    "scalars": Scalars,
    "text": Text,
    "bytes": Spans,
    "values": Values,
    "arrays": Arrays,
    "tuples": Tuples,
    "dicts": Dicts,
}


cdef Rows read(tuple layout, Pages pages, Py_ssize_t count):
    """The object that reads `count` rows of a layout."""
    return KINDS[layout[0]](layout, pages, count)


include "frozen/frozen_list.pxi"
include "frozen/frozen_dict.pxi"
