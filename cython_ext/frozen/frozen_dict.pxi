"""A dict that does not change, over bytes that many processes share; see NOTE [ Columns ] in frozen_rows.pyx.

Its keys and its values are columns.  A lookup goes through a table with open addressing: a power of two of 32-bit
words, each 0 or a row + 1.  The search for a key begins at its hash and goes on to the next word, until it finds the
row or a 0.  Python's hash of a string differs between processes, so strings have a hash of ours.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import islice

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef uint64_t hash_of(object key) except? 0:
    """A hash that is the same in each process."""
    cdef uint64_t found = 0xcbf29ce484222325    # FNV-1a's offset and prime
    cdef bytes data
    cdef const uint8_t *text
    cdef Py_ssize_t k
    if isinstance(key, str):
        data = key.encode("utf-8", "surrogatepass")
        text = data
        for k in range(len(data)):
            found = (found ^ text[k]) * <uint64_t>0x100000001b3
    else:
        found = <uint64_t><Py_ssize_t>hash(key)     # of numbers: 1, 1.0 and numpy.int64(1) have the same
    return (found ^ (found >> 32)) * <uint64_t>0x9e3779b97f4a7c15      # so that neighbours lie apart


def bits_for(Py_ssize_t count) -> int:
    """How many bits number the words of a table for `count` keys: at most two of three words are in use."""
    return max(3, (count + count // 2).bit_length())


def table_of(keys, int bits) -> bytearray:
    """The table of these keys."""
    cdef bytearray made = bytearray(4 << bits)
    cdef uint32_t *table = <uint32_t *><char *>made
    cdef uint64_t at, mask = (<uint64_t>1 << bits) - 1
    cdef uint32_t row = 0
    for key in keys:
        row += 1
        at = hash_of(key) >> (64 - bits)
        while table[at]:
            at = (at + 1) & mask
        table[at] = row
    return made


cdef class Table(Frozen):
    """The part of a frozen dict that is in C."""

    cdef readonly tuple layouts
    cdef readonly object default_factory
    cdef Py_ssize_t count, table_place
    cdef int bits
    cdef const uint32_t *table
    cdef Rows key_rows, value_rows

    def __init__(
        self, Pages pages not None, tuple keys not None, tuple values not None, Py_ssize_t count, Py_ssize_t table,
        int bits, default_factory=None,
    ):
        if count < 0 or not 3 <= bits < 33 or count >= <Py_ssize_t>1 << bits:
            raise ValueError(f"a dict of {count} keys with a table of 2**{bits} words")
        self.key_rows, self.value_rows = read(keys, pages, count), read(values, pages, count)
        self.table = <const uint32_t *>pages.at(table, <Py_ssize_t>1 << bits, 4)
        self.pages, self.layouts, self.count, self.table_place, self.bits = pages, (keys, values), count, table, bits
        self.default_factory = default_factory

    def __reduce__(self):
        keys, values = self.layouts
        made_of = self.pages, keys, values, self.count, self.table_place, self.bits, self.default_factory
        return FrozenDict, made_of

    cdef Py_ssize_t find(self, object key) except -2:
        """The row of a key, or -1."""
        cdef uint64_t mask = (<uint64_t>1 << self.bits) - 1, at = hash_of(key) >> (64 - self.bits)
        cdef Py_ssize_t row
        while self.table[at]:
            row = self.table[at] - 1
            if row < self.count:
                its = self.key_rows.row(row)
                # A dict compares keys of one hash only: the `==` of a tensor raises an error for a large integer.
                if (type(its) is type(key) or hash(its) == hash(key)) and its == key:
                    return row
            at = (at + 1) & mask
        return -1

    def __len__(self):
        return self.count

    def __contains__(self, key):
        return self.find(key) >= 0

    def __getitem__(self, key):
        cdef Py_ssize_t row = self.find(key)
        if row >= 0:
            return self.value_rows.row(row)
        if self.default_factory is None:
            raise KeyError(key)
        return self.default_factory()

    def get(self, key, default=None):
        """The value of a key, or `default`."""
        cdef Py_ssize_t row = self.find(key)
        return default if row < 0 else self.value_rows.row(row)

    def __iter__(self):
        return (self.key_rows.row(row) for row in range(self.count))


class FrozenDict(Table, Mapping):
    """A dict that does not change, whose items lie in memory that many processes share.

    It has the methods of a `collections.abc.Mapping`, and `copy()`.  Its items come in the order of the dict that it
    was made of.

    Args:
        pages: The bytes.
        keys, values: How the keys and the values lie in them.
        count: How many there are.
        table: Where the table lies.
        bits: How many bits number its words.
        default_factory: Makes the value of a missing key, as that of `defaultdict` does.  The value is not kept.
    """

    __slots__ = ()

    def copy(self):
        """The items in a dict, or in a `defaultdict` with the same factory.  It can be changed."""
        return dict(self) if self.default_factory is None else defaultdict(self.default_factory, self)

    def __repr__(self):
        return f"<frozen dict of {len(self)}: {shortened(dict(islice(self.items(), 5)))}>"
