"""Decoded pictures in common memory, as `cache="16 GB"` has them.
Takes no more when the machine or its control group has little memory left.  All
datasets have one budget, the largest.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

from shmloader.core.cache_table import CacheTable
from shmloader.images import cache_stores
from shmloader.images.cache_options import CacheOptions, size_text
from shmloader.images.cache_stores import HEAD, slots_for, write
from shmloader.system.common_memory import Place, held, open_common
from shmloader.system.limits import allowed_memory, available_memory

__all__ = ["MemoryStore"]

_SLOT = 2048  # bytes of budget for each slot of the table: a picture of 36 x 36 pixels
_STEP = 16 << 20  # bytes that are given out between two checks of the machine's free memory
_SPARE = 256 << 20  # bytes of memory that stay free for other uses, at least


class MemoryStore:
    """Pictures in common memory.  All users of it have one budget: the largest that any of them asked for."""

    def __init__(self, options: CacheOptions, first: Place | None) -> None:
        budget = options.budget
        assert budget is not None
        self._fd = open_common(cache_stores.NAME, lambda fd: CacheTable(fd, slots_for(budget / _SLOT), budget), first)
        weakref.finalize(self, os.close, self._fd).atexit = False  # at exit the kernel closes it
        self.table = CacheTable(self._fd)
        if self.table.budget < budget:
            _grow(self._fd, self.table.bytes_at + budget)
            self.table.raise_budget(budget)
            self.table = CacheTable(self._fd)  # maps the larger memory

    @property
    def place(self) -> Place:
        return held(self._fd)

    def read(self, key: bytes, at: int) -> tuple[Any, int, int] | None:
        table = self.table
        if at + HEAD.size > len(table):
            return None  # another dataset has raised the budget, and this mapping ends before the picture
        its, length, _ = HEAD.unpack_from(table, at)
        at += HEAD.size
        return (table, at, length) if its == key and length <= len(table) - at else None

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        write(self._fd, [HEAD.pack(key, len(planes), 0), planes], self.table.bytes_at + at)

    def note(self, slot: int, word: int) -> None:
        pass

    def why_full(self, before: int, after: int) -> str:
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
