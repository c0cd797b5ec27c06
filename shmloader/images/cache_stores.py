"""What has the bytes of kept pictures: common memory (cache_memory.py), or a file (cache_file.py).

A picture's bytes begin with a head: its key, how many bytes follow, and in a file a sum over them.  The samples that
follow are what Decoder.planes() gave.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Any, Protocol

from shmloader.core.cache_table import VERSION, CacheTable
from shmloader.system.common_memory import Place

__all__ = ["HEAD", "LEAST_SLOTS", "MOST_SLOTS", "NAME", "Store", "Unusable", "slots_for", "write"]

NAME = f"shmloader_cache_{VERSION}"  # of common memory; other versions do not read it
HEAD = struct.Struct("<16sQQ")  # key, bytes behind it, sum
LEAST_SLOTS, MOST_SLOTS = 1 << 14, 1 << 30


class Unusable(Exception):
    """Why there is no cache: a sentence with the limit, and one with the remedy."""


class Store(Protocol):
    """A table, and the bytes of its pictures."""

    table: CacheTable

    @property
    def place(self) -> Place:
        """Where other processes find its memory."""

    def read(self, key: bytes, at: int) -> tuple[Any, int, int] | None:
        """A picture's samples: an object with a buffer, where they begin there, and how many bytes they are."""

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        """Write a picture.  OSError, MemoryError: there is no room."""

    def note(self, slot: int, word: int) -> None:
        """The table has a new word."""

    def why_full(self, before: int, after: int) -> str:
        """Why nothing more is to be kept, where bytes up to `after` were given out; empty where there is room."""


def slots_for(wanted: float) -> int:
    """A number of slots for a table: a power of two."""
    return max(LEAST_SLOTS, min(MOST_SLOTS, 1 << (int(wanted) - 1).bit_length()))


def write(fd: int, parts: list[bytes], at: int) -> None:
    """Write all of it, or raise OSError."""
    size = sum(map(len, parts))
    done = os.pwritev(fd, parts, at)
    while done < size:  # a signal, or a disk that is nearly full
        more = os.pwrite(fd, b"".join(parts)[done:], at + done)
        if not more:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more
