"""A list that does not change, over bytes that many processes share; see NOTE [ Columns ] in frozen_rows.pyx.
An assignment raises a TypeError, and append() and the like raise an AttributeError with the remedy.

__getitem__ makes an object of each item that is asked for.  Dicts: frozen_dict.pxi.  Arrays and tensors can be
written, and each write stays in its process: freeze() in shmloader/frozen/freeze.py.
"""

from collections.abc import Sequence
from reprlib import Repr

cimport cython
import numpy


cdef object shown = Repr()
shown.maxlist = shown.maxtuple = shown.maxdict = 4
shown.maxstring = shown.maxother = 60
cdef frozenset CHANGES = frozenset(name for name in dir(list) if name not in dir(tuple) and not name.startswith("_"))
cdef str LIST_REMEDY = (
    "shmloader.freeze() made it, so that all workers share one copy. Change the list before you freeze the dataset, or "
    "assign list(...) of it to the attribute"
)


@cython.collection_type("sequence")     # for match statements
cdef class FrozenList:
    """A list that does not change, whose items lie in memory that many processes share; see NOTE [ Columns ].

    It has all methods of a list that do not change it.  A slice, a sum and a copy are lists.

    Args:
        pages: The bytes.
        layout: How the items lie in them.
        count: How many there are.
    """

    cdef readonly Pages pages
    cdef readonly tuple layout
    cdef Py_ssize_t rows_count
    cdef Rows rows

    def __init__(self, Pages pages not None, tuple layout not None, Py_ssize_t count):
        if count < 0:
            raise ValueError(f"a column of {count} rows")
        self.rows = read(layout, pages, count)
        self.pages, self.layout, self.rows_count = pages, layout, count

    def __reduce__(self):
        return FrozenList, (self.pages, self.layout, self.rows_count)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self     # nobody can change it, so nobody sees that it is the same

    def __len__(self):
        return self.rows_count

    def __getitem__(self, at):
        cdef Py_ssize_t k
        if type(at) is slice:
            return [self.rows.row(k) for k in range(*at.indices(self.rows_count))]
        try:
            k = at
        except TypeError:
            raise TypeError(f"list indices must be integers or slices, not {type(at).__name__}") from None
        except OverflowError:
            raise IndexError("list index out of range") from None
        if k < 0:
            k += self.rows_count
        if not 0 <= k < self.rows_count:
            raise IndexError("list index out of range")
        return self.rows.row(k)

    def __iter__(self):
        return Items(self)

    def __reversed__(self):
        return map(self.__getitem__, range(self.rows_count - 1, -1, -1))

    def __contains__(self, value):
        return self.find(value, 0, self.rows_count) >= 0

    cdef Py_ssize_t find(self, object value, Py_ssize_t first, Py_ssize_t last) except -2:
        cdef Py_ssize_t k
        for k in range(first, last):
            if self.rows.row(k) == value:
                return k
        return -1

    def index(self, value, start=0, stop=None):
        """The first place of a value.

        Raises:
            ValueError: It is not among the items.
        """
        begin, end, _ = slice(start, stop).indices(self.rows_count)
        cdef Py_ssize_t found = self.find(value, begin, end)
        if found < 0:
            raise ValueError(f"{shown.repr(value)} is not in list")
        return found

    def count(self, value):
        """How often a value is among the items."""
        cdef Py_ssize_t k, found = 0
        for k in range(self.rows_count):
            found += self.rows.row(k) == value
        return found

    def copy(self):
        """The items in a list, which can be changed."""
        return list(self)

    def __eq__(self, other):
        cdef Py_ssize_t k
        if not isinstance(other, (list, FrozenList)):
            return NotImplemented
        if other is self:
            return True
        if len(other) != self.rows_count:
            return False
        for k in range(self.rows_count):
            mine, its = self.rows.row(k), other[k]
            if not (mine == its or (mine != mine and its != its)):     # a list knows its NaN by identity
                return False
        return True

    def __lt__(self, other):
        return list(self) < list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    def __le__(self, other):
        return list(self) <= list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    def __gt__(self, other):
        return list(self) > list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    def __ge__(self, other):
        return list(self) >= list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    __hash__ = None

    def __add__(self, other):
        return list(self) + list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    def __radd__(self, other):
        return other + list(self) if isinstance(other, list) else NotImplemented

    def __mul__(self, times):
        return list(self) * times

    def __rmul__(self, times):
        return list(self) * times

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("the items of a frozen list are no array, so that they must be copied into one")
        return numpy.array(self.numbers(), dtype)

    cdef object numbers(self):
        """The object of which NumPy makes an array: a view of numbers; a list of all other items."""
        kind = self.layout[0]
        if kind == "ints":
            return self.block(f"i{self.layout[2]}").astype(numpy.int64)
        if kind == "floats":
            return self.block("f8")
        return self.block("?") if kind == "bools" else list(self)

    cdef object block(self, str dtype):
        return numpy.frombuffer(self.pages.memory, dtype, self.rows_count, self.pages.place + self.layout[1])

    def __repr__(self):
        items = shown.repr(self[:5])
        return f"<frozen list of {self.rows_count}: {items}>"

    def __setitem__(self, at, value):
        raise TypeError(f"item {shown.repr(at)} cannot be assigned: the list is frozen. {LIST_REMEDY}")

    def __delitem__(self, at):
        raise TypeError(f"item {shown.repr(at)} cannot be deleted: the list is frozen. {LIST_REMEDY}")

    def __iadd__(self, other):
        return self + other     # as for a tuple: the variable gets a new list, and this object stays as it is

    def __getattr__(self, name):
        if name in CHANGES and name != "copy":
            raise AttributeError(f"{name}() changes a list, and this one is frozen. {LIST_REMEDY}")
        raise AttributeError(f"'FrozenList' object has no attribute {name!r}")


cdef class Items:
    """Iterates over the items."""

    cdef FrozenList items
    cdef Py_ssize_t next

    def __cinit__(self, FrozenList items):
        self.items, self.next = items, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next >= self.items.rows_count:
            raise StopIteration
        self.next += 1
        return self.items.rows.row(self.next - 1)

    def __length_hint__(self):
        return self.items.rows_count - self.next


Sequence.register(FrozenList)
