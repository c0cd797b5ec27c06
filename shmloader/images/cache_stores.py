"""The interface of the stores for kept pictures: common memory (cache_memory.py), or a file (cache_file.py).

A picture's bytes begin with a head: its key, the number of bytes that follow, and, in a file, their checksum.  Then
come the samples, as Decoder.planes() returned them.
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
HEAD = struct.Struct("<16sQQ")  # key, bytes after the head, checksum
LEAST_SLOTS, MOST_SLOTS = 1 << 14, 1 << 30


class Unusable(Exception):
    """Why there is no cache: a sentence with the limit, and one with the remedy."""


class Store(Protocol):
    """A table, and the bytes of its pictures."""

    table: CacheTable

    @property
    def place(self) -> Place:
        """How other processes find its memory."""

    def read(self, key: bytes, at: int) -> tuple[Any, int, int] | None:
        """A picture's samples: an object with a buffer, their offset in it, and their size in bytes."""

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        """Write a picture.  Raises OSError or MemoryError if there is no room."""

    def note(self, slot: int, word: int) -> None:
        """Record that the table has a new word."""

    def why_full(self, before: int, after: int) -> str:
        """Why no more pictures are kept, once the bytes up to `after` are given out; empty while there is room."""


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
