"""Reads the value of `cache=`: a size of memory, a share of it, a file, or a file and its size.  It limits sizes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from shmloader.system.limits import allowed_memory

__all__ = ["CacheOptions", "cache_options", "size_text"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", re.IGNORECASE)
_LEAST = 1 << 20
_REMEDY = (
    "Give a size (cache='16 GB'), a share of the memory that this process may have (cache=0.3), the path of a file "
    "(cache='train.cache'), or a file and its size (cache=('train.cache', '200 GB'))."
)


@dataclass(frozen=True)
class CacheOptions:
    """Where decoded pictures are kept.

    Args:
        value: the user's `cache=`, for messages.
        path: of the file; None: in memory.
        budget: bytes; None: as many as the file's disk has.
    """

    value: Any
    path: str | None
    budget: int | None

    def __str__(self) -> str:
        return f"cache={self.value!r}"


def cache_options(value: Any) -> CacheOptions:
    """Parse a user's `cache=`.

    Raises:
        TypeError, ValueError: it has no meaning.
    """
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], (str, os.PathLike)):
        return CacheOptions(value, _path(value[0]), _bytes_of(value[1], value))
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.strip() and not _SIZE.fullmatch(value)):
        return CacheOptions(value, _path(value), None)
    return CacheOptions(value, None, _bytes_of(value, value))


def size_text(size: float) -> str:
    """A number of bytes, for people."""
    unit = 0
    while size >= 1024 and unit < 4:
        size, unit = size / 1024, unit + 1
    return f"{size:.{0 if unit == 0 or size >= 100 else 1}f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _path(value: Any) -> str:
    return os.path.realpath(os.path.expanduser(os.fsdecode(value)))


def _bytes_of(value: Any, given: Any) -> int:
    if isinstance(value, float):
        if not 0 < value < 1:
            raise ValueError(f"cache={given!r} is no share of the memory. A share is above 0 and below 1. {_REMEDY}")
        return int(value * allowed_memory())
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"cache={given!r} is a {type(value).__name__}. {_REMEDY}")
    if isinstance(value, int):
        size = value
    elif (match := _SIZE.fullmatch(value)) is not None:
        size = int(float(match[1]) * _UNITS[match[2].upper()])
    else:
        raise ValueError(f"cache={given!r} is invalid, because {value!r} is no size. {_REMEDY}")
    if not _LEAST <= size < 1 << 42:
        raise ValueError(f"cache={given!r} is {size} bytes. A cache has 1 MiB to 4 TiB. {_REMEDY}")
    return size
