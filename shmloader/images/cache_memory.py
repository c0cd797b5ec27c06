"""The common memory of decoded pictures: a table, and the pictures' bytes.
Takes no more when the machine or its control group has little memory left.  All datasets have one budget, the largest.

A picture's bytes begin with a head: its key, and the number of bytes that follow.  Then come the samples, as
Decoder.planes() returned them.
"""

from __future__ import annotations

import contextlib
import os
import struct
import weakref

from shmloader.core.cache_table import VERSION, CacheTable
from shmloader.images.cache import size_text
from shmloader.system.common_memory import Place, held, open_common
from shmloader.system.limits import allowed_memory, available_memory

__all__ = ["HEAD", "CacheMemory"]

NAME = f"shmloader_cache_{VERSION}"  # other versions do not read it
HEAD = struct.Struct("<16sQ")  # key, bytes after the head
_SLOT = 2048  # bytes of budget for each slot of the table: a picture of 36 x 36 pixels
_LEAST_SLOTS, _MOST_SLOTS = 1 << 14, 1 << 30
_STEP = 16 << 20  # bytes that are given out between two checks of the machine's free memory
_SPARE = 256 << 20  # bytes of memory that stay free for other uses, at least


class CacheMemory:
    """Pictures in common memory.  All users of it have one budget: the largest that any of them asked for.

    Args:
        budget: bytes for pictures.
        first: where another process had this memory.

    Raises:
        OSError, MemoryError: there is no such memory here.
    """

    def __init__(self, budget: int, first: Place | None) -> None:
        slots = max(_LEAST_SLOTS, min(_MOST_SLOTS, 1 << (budget // _SLOT - 1).bit_length()))
        self._fd = open_common(NAME, lambda fd: CacheTable(fd, slots, budget), first)
        weakref.finalize(self, os.close, self._fd).atexit = False  # at exit the kernel closes it
        self.table = CacheTable(self._fd)
        if self.table.budget < budget:
            _grow(self._fd, self.table.bytes_at + budget)
            self.table.raise_budget(budget)
            self.table = CacheTable(self._fd)  # maps the larger memory

    @property
    def place(self) -> Place:
        """How other processes find it."""
        return held(self._fd)

    def read(self, key: bytes, at: int) -> tuple[CacheTable, int, int] | None:
        """A picture's samples: an object with a buffer, their offset in it, and their size in bytes."""
        table = self.table
        if at + HEAD.size > len(table):
            return None  # another dataset has raised the budget, and this mapping ends before the picture
        its, length = HEAD.unpack_from(table, at)
        at += HEAD.size
        return (table, at, length) if its == key and length <= len(table) - at else None

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        """Write a picture.  Raises OSError or MemoryError if there is no room."""
        at += self.table.bytes_at
        os.pwrite(self._fd, HEAD.pack(key, len(planes)), at)
        left = memoryview(planes)
        while left:  # the kernel may write a part, if it finds no memory for the rest
            left = left[os.pwrite(self._fd, left, at + HEAD.size + len(planes) - len(left)) :]

    def why_full(self, before: int, after: int) -> str:
        """Why no more pictures are kept, once the bytes up to `after` are given out; empty while there is room."""
        if before // _STEP == after // _STEP:
            return ""
        left, spare = available_memory(), max(_SPARE, allowed_memory() // 20)
        if left >= spare:
            return ""
        return (
            f"This machine or its control group has {size_text(left)} of memory left. At least {size_text(spare)} stay "
            f"free for other uses. Give a smaller budget than {size_text(self.table.budget)}, or more memory."
        )


def _grow(fd: int, size: int) -> None:
    if os.fstat(fd).st_size < size:
        with contextlib.suppress(PermissionError):  # another process has enlarged it, and it may not shrink
            os.ftruncate(fd, size)
