"""A cache of decoded pictures (`cache=`), which all workers, ranks and jobs of a user share: docs/caching.md.
Nothing is evicted: when the budget is used up, all other pictures are decoded each time.  A picture is found by its
path, size and modification time.

It keeps the samples of whole pictures as their files have them, before chroma is upsampled: NOTE [ Kept planes ] in
cython_ext/jpeg/planes.c.  Any crop, of any size and by any filter, is made of these, and equals the file's crop bit for
bit.  NOTE [ Cache table ] in cython_ext/atomics.h explains how processes add pictures at the same time.

The value of `cache=` is a size of memory, or a share of it.  The common memory has a table, and the pictures' bytes.
It takes no more when the machine or its control group has little memory left.  All datasets have one budget, the
largest.

A picture's bytes begin with a head: its key, and the number of bytes that follow.  Then come the samples, as
Decoder.planes() returned them.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import warnings
import weakref
from hashlib import blake2b
from typing import Any

from shmloader.core.cache_table import VERSION, CacheTable, Claim
from shmloader.core.jpeg import Decoder
from shmloader.system.common_memory import Place, held, open_common
from shmloader.system.limits import allowed_memory, available_memory
from shmloader.system.processes import start_of

__all__ = ["HEAD", "Cache", "CacheMemory", "budget_of", "size_text"]

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


_PLANES = b"planes 1"  # the decoder's output; if its contents or their order change, so must the number
_STATUS = struct.Struct("<QQ")
_WORD = 2**64 - 1  # bits of a modification time that a key has: the time may be before 1970, or after 2554

# How claims name this process: its pid and its start time.
_process = (0, 0)


class Cache:
    """The decoded pictures of one dataset.  It can be pickled, and the copy finds the same memory.

    Args:
        value: the user's `cache=`.
        pictures: the number of pictures of the dataset.

    Raises:
        TypeError, ValueError: `value` has no meaning.
    """

    def __init__(self, value: Any, pictures: int) -> None:
        self._name, self._budget = f"cache={value!r}", budget_of(value)
        self._pictures = pictures
        self._place: Place | None = None
        self._memory: CacheMemory | None = None
        self._line = 0
        self._is_off = False  # whether it cannot be opened here
        if (memory := self._opened()) is not None:
            self._line = memory.table.new_line()
            if self._budget > (most := allowed_memory()):
                self._warn(
                    f"the budget is larger than the {size_text(most)} of memory that this machine or its control group "
                    "has. Pictures are kept while there is memory. Give a smaller budget, or more memory."
                )

    def __getstate__(self) -> dict[str, Any]:
        place = self._place if self._memory is None else self._memory.place
        return {**self.__dict__, "_memory": None, "_place": place}

    def find(self, path: str) -> tuple[Any, int, int] | None:
        """The samples of a picture: see CacheMemory.read(); None if they are not kept.

        Raises:
            OSError: the file does not exist.
        """
        if (memory := self._opened()) is None:
            return None
        status = os.stat(path)
        key = _key(path, (status.st_size, status.st_mtime_ns))
        at = memory.table.find(key)
        found = None if at < 0 else memory.read(key, at)
        if found is not None:
            memory.table.count_found(self._line)
        return found

    def has(self, path: str) -> bool:
        """Whether a picture is kept, so that its file need not be read.

        Raises:
            OSError: the file does not exist.
        """
        if (memory := self._opened()) is None:
            return False
        status = os.stat(path)
        return bool(memory.table.find(_key(path, (status.st_size, status.st_mtime_ns))) >= 0)

    def note_other(self) -> None:
        """Count a picture that our decoder does not take, so that it is not kept."""
        if (memory := self._opened()) is not None:
            memory.table.count_other(self._line)

    def keep(self, path: str, decoder: Decoder) -> bool:
        """Keep the picture that a decoder has read, if there is room and no other process is about to keep it.

        Returns:
            Whether the decoder has now decoded the whole picture.
        """
        if (memory := self._opened()) is None:
            return False
        table, size = memory.table, HEAD.size + decoder.planes_bytes()
        if not table.takes(size):
            table.count_missed(self._line, size)
            return False
        key = _key(path, decoder.status)
        claim = Claim(table, *_this_process())
        try:
            if not claim.take(key, _has_ended):
                return False
            planes = decoder.planes()
            if planes is None:
                return False  # the file is broken; decoding the wanted part will show whether that matters
            self._write(memory, claim, key, planes)
            return True
        except MemoryError:
            return False
        finally:
            claim.release()

    def _write(self, memory: CacheMemory, claim: Claim, key: bytes, planes: bytes) -> None:
        """Reserve room as late as possible, because room that is reserved and not published is lost."""
        table, size = memory.table, HEAD.size + len(planes)
        try:
            at = table.reserve(size)
            if at < 0:
                table.count_missed(self._line, size)
                return
            memory.write(key, at, planes)
            if claim.publish(at):
                table.count_kept(self._line)
            why = memory.why_full(at, at + size)
        except (OSError, MemoryError) as error:
            why = f"{error}. Make room, or give a smaller budget."
        if why and table.note_full():
            self._warn(f"the cache takes no more pictures. It keeps the {size_text(table.used)} that it has. {why}")

    def report(self) -> str:
        """How many pictures came from the cache, and what a larger budget would bring; empty before the first one."""
        if (memory := self._opened()) is None:
            return f"{self._name}: it cannot be had here, and each picture is decoded"
        table, figures = memory.table, memory.table.figures(self._line)
        pictures = figures.found + figures.kept + figures.missed + figures.others
        if not pictures:
            return ""
        text = f"{figures.found / pictures:.0%} of the pictures came from the cache ({figures.found:,} of {pictures:,})"
        text += f"; it has {size_text(table.used)} of {size_text(table.budget)}"
        if figures.others:
            text += f"; {figures.others / pictures:.0%} are no baseline JPEG files and cannot be kept"
        if figures.missed:
            share = figures.missed / pictures
            more = share * self._pictures * figures.missed_bytes / figures.missed
            text += f"; {share:.0%} did not fit, and {size_text(more)} more would hold them"
            text += f". That would spare decoding {share:.0%} of each epoch"
            if table.is_full:
                text += ", but there is no more memory"
        return text

    def _opened(self) -> CacheMemory | None:
        """The memory that all processes of this user on this machine share, in this process."""
        if self._memory is None and not self._is_off:
            try:
                self._memory = CacheMemory(self._budget, self._place)
            except (OSError, MemoryError) as error:
                self._is_off = True
                self._warn(f"{error}. Without a cache, pictures are decoded each time. Give more memory, or no cache.")
        return self._memory

    def _warn(self, text: str) -> None:
        warnings.warn(f"{self._name}: {text}", RuntimeWarning, stacklevel=2)


def _key(path: str, status: tuple[int, int]) -> bytes:
    """The key of a picture: its path, size and modification time, and the version of the decoder's output."""
    name = os.fsencode(path if path.startswith("/") else os.path.join(os.getcwd(), path))
    return blake2b(name, digest_size=16, salt=_STATUS.pack(status[0], status[1] & _WORD), person=_PLANES).digest()


def _this_process() -> tuple[int, int]:
    global _process
    pid = os.getpid()
    if _process[0] != pid:
        _process = pid, start_of(pid) or 0
    return _process


def _has_ended(pid: int, start: int) -> bool:
    return start_of(pid) != start
