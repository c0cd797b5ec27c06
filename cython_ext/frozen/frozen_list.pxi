"""A list that does not change, over bytes that many processes share; see NOTE [ Columns ] in frozen_rows.pyx.

__getitem__ makes an object of each item that is asked for.  Dicts: frozen_dict.pxi.  Arrays and tensors can be
written, and each write stays in its process: freeze() in shmloader/frozen/freeze.py.
"""

from collections.abc import Sequence
from reprlib import repr as shortened


cdef class Frozen:
    """What frozen lists and dicts share: their bytes.  Nobody can change them, so a copy may be the same object."""

    cdef readonly Pages pages

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self


cdef class Column(Frozen):
    """The part of a frozen list that is in C."""

    cdef readonly tuple layout
    cdef Py_ssize_t rows_count
    cdef Rows rows

    def __init__(self, Pages pages not None, tuple layout not None, Py_ssize_t count):
        self.rows = read(layout, pages, count)
        self.pages, self.layout, self.rows_count = pages, layout, count

    def __reduce__(self):
        return FrozenList, (self.pages, self.layout, self.rows_count)

    def __len__(self):
        return self.rows_count

    def __getitem__(self, at):
        cdef Py_ssize_t k
        if type(at) is slice:
            return [self.rows.row(k) for k in range(*at.indices(self.rows_count))]
        k = at
        if k < 0:
            k += self.rows_count
        if not 0 <= k < self.rows_count:
            raise IndexError("list index out of range")
        return self.rows.row(k)

    def __iter__(self):
        cdef Py_ssize_t k
        for k in range(self.rows_count):
            yield self.rows.row(k)


class FrozenList(Column, Sequence):
    """A list that does not change, whose items lie in memory that many processes share; see NOTE [ Columns ].

    It has the methods of a `collections.abc.Sequence`, `copy()`, `+` and `*`.  A slice, a sum and a copy are lists.

    Args:
        pages: The bytes.
        layout: How the items lie in them.
        count: How many there are.
    """

    __slots__ = ()

    def copy(self):
        """The items in a list, which can be changed."""
        return list(self)

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    def __add__(self, other):
        return list(self) + list(other) if isinstance(other, (list, FrozenList)) else NotImplemented

    def __radd__(self, other):
        return other + list(self) if isinstance(other, list) else NotImplemented

    def __mul__(self, times):
        return list(self) * times

    __rmul__ = __mul__

    def __repr__(self):
        return f"<frozen list of {len(self)}: {shortened(self[:5])}>"
