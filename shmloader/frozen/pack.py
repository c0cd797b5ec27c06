"""Writes lists and dicts as columns, and decides which values can be columns.
Tuples and dicts of up to 64 fields have a column for each.  NOTE [ Columns ] in cython_ext/frozen/frozen_rows.pyx has
the layouts.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy

from shmloader.core.frozen_rows import bits_for, table_of
from shmloader.system.sealed_memory import Counter

Layout = tuple[Any, ...]

MOST_FIELDS = 64  # of a tuple or a dict, each of which is a column of its own
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class NotPlain(Exception):
    """Something that cannot be stored as bytes.  Its text names it, as a part of a sentence."""


def pack(items: Sequence[Any], writer: Counter) -> Layout:
    """Write items as a column.  There may be none.

    Args:
        items: The items.  The column returns items that are equal and of the same classes.
        writer: Where to write them.

    Returns:
        The layout.

    Raises:
        NotPlain: Some of them are not made of Python's own values, NumPy's scalars and NumPy's arrays.
        MemoryError: The machine does not have the memory.
    """
    kinds = set(map(type, items))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in _KINDS:
            return _KINDS[kind](items, writer)
        if issubclass(kind, numpy.generic) and kind.__module__ == "numpy":
            return _scalars(items, kind, writer)
    return _values(items, writer)


# ----------------------------------------------------------------------------------------------------- simple kinds


def _ints(items: Sequence[Any], writer: Counter) -> Layout:
    try:
        numbers = numpy.array(items, numpy.int64)
    except OverflowError:
        return _values(items, writer)
    least, most = int(numbers.min()), int(numbers.max())
    width = next(w for w in (1, 2, 4, 8) if -(1 << 8 * w - 1) <= least and most < 1 << 8 * w - 1)
    return _numbers(numbers, f"i{width}", writer)


def _numbers(items: Any, dtype: str, writer: Counter) -> Layout:
    return "numbers", writer.put(numpy.array(items, dtype)), dtype


def _scalars(items: Sequence[Any], kind: type, writer: Counter) -> Layout:
    dtypes = {item.dtype for item in items}
    if len(dtypes) > 1:  # datetimes of several units, texts of several lengths
        raise NotPlain(f"{kind.__name__} of several dtypes")
    (dtype,) = dtypes
    if dtype.hasobject or not dtype.itemsize or dtype.char in "SU":  # an array drops zeros at the end of a text
        raise NotPlain(f"{kind.__name__} with objects, of text, or without a byte")
    return "scalars", writer.put(b"".join(item.tobytes() for item in items)), dtype


# ----------------------------------------------------------------------------------------- rows of different lengths


def _values(items: Sequence[Any], writer: Counter) -> Layout:
    for item in items:
        _check_plain(item)
    return _spans("values", [marshal.dumps(item, 4) for item in items], writer)


def _spans(kind: str, rows: Sequence[bytes], writer: Counter) -> Layout:
    ends, width = _ends(map(len, rows), len(rows), writer)
    return kind, ends, width, writer.put(b"".join(rows))


def _ends(lengths: Any, count: int, writer: Counter) -> tuple[int, int]:
    """Write where rows of these lengths end; the place, and the bytes of a number."""
    ends = numpy.zeros(count + 1, numpy.uint64)
    numpy.cumsum(numpy.fromiter(lengths, numpy.uint64, count), out=ends[1:])
    width = 4 if int(ends[-1]) < 1 << 32 else 8
    return writer.put(ends.astype(f"u{width}")), width


def _arrays(items: Sequence[Any], writer: Counter) -> Layout:
    first = items[0]
    if any(item.dtype != first.dtype or item.ndim != first.ndim for item in items):
        raise NotPlain("arrays of several dtypes, or of several numbers of sides")
    if first.dtype.hasobject or not first.dtype.itemsize:
        raise NotPlain(f"arrays of {first.dtype}")
    if not all(item.flags.c_contiguous and item.flags.writeable for item in items):
        raise NotPlain("arrays that are strided or read-only")
    if sum(item.nbytes for item in items) > sum(owner.nbytes for owner in owners(items)):
        raise NotPlain("arrays that share memory with one another")
    shapes = numpy.array([item.shape for item in items], numpy.int64)
    ends, width = _ends((item.nbytes for item in items), len(items), writer)
    place = writer.put(b"".join(item.tobytes() for item in items))
    return "arrays", ends, width, place, first.dtype, writer.put(shapes), first.ndim


def owners(arrays: Iterable[Any]) -> list[Any]:
    """The arrays that own the memory of these, each once."""
    bases = (one.base if type(one.base) is numpy.ndarray else one for one in arrays)
    return list({id(one): one for one in bases}.values())


# ------------------------------------------------------------------------------------------------- tuples and dicts


def _tuples(items: Sequence[Any], writer: Counter) -> Layout:
    if len(set(map(len, items))) > 1 or not 0 < len(items[0]) <= MOST_FIELDS:
        return _values(items, writer)
    return "tuples", tuple(pack(field, writer) for field in zip(*items, strict=True))


def _dicts(items: Sequence[Any], writer: Counter) -> Layout:
    keys = tuple(items[0])
    alike = all(type(key) in (str, int) for key in keys) and 0 < len(keys) <= MOST_FIELDS
    kinds = tuple(map(type, keys))  # True equals 1, but is another key
    if not alike or any(tuple(item) != keys or tuple(map(type, item)) != kinds for item in items):
        return _values(items, writer)
    return "dicts", tuple(pack([item[key] for item in items], writer) for key in keys), keys


def _check_plain(item: Any) -> None:
    """Check that marshal returns this item unchanged: it turns a subclass into its base, and a buffer into bytes.

    Raises:
        NotPlain: It does not.
    """
    kind = type(item)
    if kind in (list, tuple, set, frozenset):
        for part in item:
            _check_plain(part)
    elif kind is dict:
        for pair in item.items():
            _check_plain(pair)
    elif kind not in _PLAIN:
        raise NotPlain(f"objects of class {kind.__name__}")


_KINDS: dict[type, Callable[[Sequence[Any], Counter], Layout]] = {
    type(None): lambda items, writer: ("nones",),
    bool: lambda items, writer: _numbers(items, "?", writer),
    int: _ints,
    float: lambda items, writer: _numbers(items, "f8", writer),
    str: lambda items, writer: _spans("text", [item.encode("utf-8", "surrogatepass") for item in items], writer),
    bytes: lambda items, writer: _spans("bytes", items, writer),
    numpy.ndarray: _arrays,
    tuple: _tuples,
    dict: _dicts,
}


def pack_dict(items: dict[Any, Any], writer: Counter) -> tuple[Layout, Layout, int, int]:
    """Write a dict whose keys are all strings, or all integers.

    Returns:
        The layouts of the keys and of the values, the place of the table, and the number of bits that count its words.

    Raises:
        NotPlain: It has keys of other types, or values that `pack` does not write.
        MemoryError: The machine does not have the memory.
    """
    if set(map(type, items)) not in ({str}, {int}):
        raise NotPlain("keys that are neither all strings nor all integers")
    if len(items) >= 1 << 31:
        raise NotPlain("more than 2**31 keys")
    bits = bits_for(len(items))
    keys, values = pack(list(items), writer), pack(list(items.values()), writer)
    return keys, values, writer.put(table_of(items, bits)), bits
