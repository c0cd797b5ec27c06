"""torch's default_collate for samples in plain containers: the same result, without its walk in Python.
It leaves batches to torch if `default_collate_fn_map` was changed, or a torch mode might see the calls.

It takes a list of samples that are lists, tuples, dicts and named tuples of tensors, arrays, numbers and text, at any
depth, and makes their columns in one walk.  All other values of samples go to torch's collate() as a column.  If
anything raises, default_collate itself collates the samples again, so the error and its traceback are torch's.
"""

from cpython.dict cimport PyDict_Next
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM

from shmloader.core.tensors cimport is_scalar

import numpy
import torch

from shmloader.core.batch_tree import is_namedtuple

cdef extern from "Python.h":
    PyObject *PySequence_Fast_GET_ITEM(object sequence, Py_ssize_t k)   # borrowed, of a list or a tuple
    Py_ssize_t PySequence_Fast_GET_SIZE(object sequence)

cdef enum:
    DEEPEST = 100       # nesting; torch collates what is deeper, and meets Python's own limit


cdef class PlainCollate:
    """default_collate for a worker's samples.

    Args:
        writer: lays columns into the slot.
        entries: default_collate_fn_map with our entries in place of torch's.
        collate, default_collate: torch's.
        modes: how many torch modes see the functions that are called, or change them.
    """

    cdef Writer writer
    cdef dict entries
    cdef list known
    cdef object collate, default_collate, modes

    def __init__(self, Writer writer not None, dict entries not None, collate, default_collate, modes):
        self.writer, self.entries = writer, entries
        self.collate, self.default_collate, self.modes = collate, default_collate, modes
        self.known = list(entries.items())

    def __call__(self, batch):
        if type(batch) is list and batch and self.is_known() and not self.modes():
            try:
                return self.column(batch, 0)
            except Exception:   # default_collate raises it again
                pass
        return self.default_collate(batch)

    cdef bint is_known(self) except -1:
        """Whether the map is unchanged, at no cost that a batch would notice.  Users may add entries, and theirs win."""
        cdef Py_ssize_t at = 0, k = 0, count = len(self.known)
        cdef PyObject *key
        cdef PyObject *value
        cdef tuple item
        while PyDict_Next(self.entries, &at, &key, &value):
            if k == count:
                return False
            item = <tuple>self.known[k]
            if <PyObject *>item[0] != key or <PyObject *>item[1] != value:
                return False
            k += 1
        return k == count

    cdef object column(self, object column, int depth):
        """default_collate's result for these parts of all samples, a list or a tuple."""
        cdef object kind = type(column[0]), made = None
        if kind is Tensor:
            made = self.writer.stack(column)
        elif kind is int or kind is float or kind is bool or is_scalar(kind):
            made = self.writer.stack_numbers(column)
        elif kind is Array:
            made = self.writer.stack_arrays(column)
        elif kind is str or kind is bytes:
            return column
        elif depth >= DEEPEST:
            pass
        elif kind is tuple or kind is list or is_namedtuple(kind):
            made = self.sequences(column, kind, depth)
        elif kind is dict:
            made = self.dicts(column, depth)
        return self.collate(column, collate_fn_map=self.entries) if made is None else made

    cdef object sequences(self, object column, object kind, int depth):
        """Lists and tuples of one size, or named tuples of one class; None if they differ."""
        cdef Py_ssize_t k, part, count = len(column), size = len(column[0])
        cdef bint is_named = kind is not tuple and kind is not list
        cdef object row
        cdef list columns
        column = tuple(column)      # so that no code can change it
        for row in column:
            if is_named and type(row) is not kind or not is_named and type(row) is not tuple and type(row) is not list:
                return None
            if PySequence_Fast_GET_SIZE(row) != size:
                return None
        columns = [columns_part(column, part, count) for part in range(size)]   # all of them, before any code runs
        for row in columns:
            if row is None:
                return None
        columns = [self.column(each, depth + 1) for each in columns]
        return kind(*columns) if is_named else columns

    cdef object dicts(self, object column, int depth):
        """Dicts.  Those after the first may have more keys."""
        cdef dict made = {}
        for row in column:
            if type(row) is not dict:
                return None
        for key in <dict>column[0]:
            made[key] = self.column([(<dict>row)[key] for row in column], depth + 1)
        return made


cdef object columns_part(object column, Py_ssize_t part, Py_ssize_t count):
    """The same part of all samples; None if the collector ran user code that removed some of them.
    """
    cdef tuple parts = PyTuple_New(count)
    cdef object row, value
    cdef Py_ssize_t k
    for k in range(count):
        row = <object>PySequence_Fast_GET_ITEM(column, k)
        if part >= PySequence_Fast_GET_SIZE(row):
            return None
        value = <object>PySequence_Fast_GET_ITEM(row, part)
        Py_INCREF(value)
        PyTuple_SET_ITEM(parts, k, value)
    return parts
