"""Reads the value of `cache=`: a size of memory, or a share of it.  It limits sizes."""

from __future__ import annotations

import re
from typing import Any

from shmloader.system.limits import allowed_memory

__all__ = ["budget_of", "size_text"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", re.IGNORECASE)
_LEAST = 1 << 20
_REMEDY = "Give a size (cache='16 GB') or a share of the memory that this process may have (cache=0.3)."
_NO_FILE = (
    f"Decoded pictures are kept in memory, and in no file. {_REMEDY} A file can keep an index of the pictures, with "
    "which later runs decode them a fifth faster: rows='train.rows'."
)


def budget_of(value: Any) -> int:
    """The bytes that a user's `cache=` allows.

    Raises:
        TypeError, ValueError: it has no meaning.
    """
    if isinstance(value, float):
        if not 0 < value < 1:
            raise ValueError(f"cache={value!r} is no share of the memory. A share is above 0 and below 1. {_REMEDY}")
        return int(value * allowed_memory())
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"cache={value!r} is a {type(value).__name__}. {_NO_FILE}")
    if isinstance(value, int):
        size = value
    elif (match := _SIZE.fullmatch(value)) is not None:
        size = int(float(match[1]) * _UNITS[match[2].upper()])
    else:
        raise ValueError(f"cache={value!r} is no size. {_NO_FILE}")
    if not _LEAST <= size < 1 << 42:
        raise ValueError(f"cache={value!r} is {size} bytes. A cache has 1 MiB to 4 TiB. {_REMEDY}")
    return size


def size_text(size: float) -> str:
    """A number of bytes, for people."""
    unit = 0
    while size >= 1024 and unit < 4:
        size, unit = size / 1024, unit + 1
    return f"{size:.{0 if unit == 0 or size >= 100 else 1}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"
