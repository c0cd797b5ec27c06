"""Where the bytes of kept pictures lie: in common memory, or in a file.

A picture's bytes begin with a head: its key, how many bytes follow, and in a file a sum over them.  The samples that
follow are what Decoder.planes() gave.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
import warnings
import weakref
from typing import Any, Protocol

from shmloader.core.cache_table import VERSION, CacheTable, sum_of
from shmloader.images.cache_options import CacheOptions, size_text
from shmloader.system.common_memory import Place, held, open_common
from shmloader.system.limits import allowed_memory, available_memory

__all__ = ["HEAD", "FileStore", "MemoryStore", "Store", "Unusable", "open_store"]

HEAD = struct.Struct("<16sQQ")  # key, bytes behind it, sum
_NAME = f"shmloader_cache_{VERSION}"  # of common memory; other versions do not read it
_SLOT = 2048  # bytes of the budget for which the table has a slot: a picture of 36 x 36 pixels
_LEAST_SLOTS, _MOST_SLOTS = 1 << 14, 1 << 30
_STEP = 16 << 20  # bytes after which somebody looks whether the machine has more
_SPARE = 256 << 20  # bytes of memory that are left to everybody else, at least

_MAGIC = b"shmloader cache "
_FORMAT = 1
_HEADER = struct.Struct("<16sQQ")  # magic, format, slots
_TABLE_AT = 4096


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


def open_store(options: CacheOptions, pictures: int, first: Place | None = None) -> Store:
    """The store that all processes of this user and machine have.

    Args:
        options: what the user wants.
        pictures: of the dataset.
        first: where another process had its memory.

    Raises:
        Unusable: it cannot be had.
        ValueError: the file is something else.
        FileNotFoundError: there is no such folder.
    """
    try:
        return MemoryStore(options, first) if options.path is None else FileStore(options, pictures, first)
    except (FileNotFoundError, IsADirectoryError):
        raise
    except (OSError, MemoryError) as error:
        raise Unusable(f"{error}. Give more memory, another path, or no cache") from error


def _slots(wanted: float) -> int:
    return max(_LEAST_SLOTS, min(_MOST_SLOTS, 1 << (int(wanted) - 1).bit_length()))


class MemoryStore:
    """Pictures in common memory.  All that use it have one budget: the largest that anybody asked for."""

    def __init__(self, options: CacheOptions, first: Place | None) -> None:
        budget = options.budget
        assert budget is not None
        self._fd = open_common(_NAME, lambda fd: CacheTable(fd, _slots(budget / _SLOT), budget), first)
        weakref.finalize(self, os.close, self._fd).atexit = False  # a process that ends closes it
        self.table = CacheTable(self._fd)
        if self.table.budget < budget:
            _grow(self._fd, self.table.bytes_at + budget)
            self.table.raise_budget(budget)
            self.table = CacheTable(self._fd)  # all of it

    @property
    def place(self) -> Place:
        return held(self._fd)

    def read(self, key: bytes, at: int) -> tuple[Any, int, int] | None:
        table = self.table
        if at + HEAD.size > len(table):
            return None  # another dataset has raised the budget since
        its, length, _ = HEAD.unpack_from(table, at)
        at += HEAD.size
        return (table, at, length) if its == key and length <= len(table) - at else None

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        _write(self._fd, [HEAD.pack(key, len(planes), 0), planes], self.table.bytes_at + at)

    def note(self, slot: int, word: int) -> None:
        pass

    def why_full(self, before: int, after: int) -> str:
        if before // _STEP == after // _STEP:
            return ""
        left, spare = available_memory(), max(_SPARE, allowed_memory() // 20)
        if left >= spare:
            return ""
        return (
            f"{size_text(left)} of memory are left to this machine or its control group, and {size_text(spare)} are "
            f"left to everybody else. Give a smaller budget than {size_text(self.table.budget)}, or more memory"
        )


class FileStore:
    """Pictures in a file: NOTE [ Cache file ].

    NOTE [ Cache file ]

        1. The file has a header, a table and pictures.  No process maps it: a mapped file that is truncated, or that a
           full disk or a broken one has no page for, is SIGBUS.  It is read and written by calls, which say what
           failed.
        2. While it is used, its table is in common memory, where words are claimed and published as
           NOTE [ Cache table ] has it.  Who publishes an entry writes that word into the file as well, after the
           picture's bytes.  So the file has no claims, and none of a dead process.
        3. After a loss of power a word may be on the disk whose bytes are not.  So each picture that is read is
           compared with its sum.  A word whose picture is broken is cleared in the file, and the next run keeps that
           picture again.
        4. Who makes the common memory of a file locks the file (flock), so that processes that cannot see it, of
           another machine, container or user, do not write to the same places.  They read, and add nothing.
    """

    def __init__(self, options: CacheOptions, pictures: int, first: Place | None) -> None:
        assert options.path is not None
        self._options = options
        self._file = _open_file(options.path, _slots(4 * pictures))
        weakref.finalize(self, os.close, self._file).atexit = False
        there = os.fstat(self._file)
        self._slots = _checked(self._file, options.path)
        self._bytes_at = _TABLE_AT + 8 * self._slots
        ends = f"_{there.st_dev}_{there.st_ino}"
        self._fd = open_common(_NAME + ends, self._begin, first)
        weakref.finalize(self, os.close, self._fd).atexit = False
        if f"{ends} " not in os.readlink(f"/proc/self/fd/{self._fd}"):  # where it was found before: of another file
            raise OSError(errno.ESTALE, f"{options.path} was made again while it was in use")
        self.table = CacheTable(self._fd, has_bytes=False)
        if self.table.slots != self._slots:
            raise OSError(errno.ESTALE, f"{options.path} has another table than when it was first used")
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if options.budget is not None:
            self.table.raise_budget(options.budget)

    def _begin(self, fd: int) -> None:
        """Make the table of this file's pictures in new memory."""
        words = _read(self._file, 8 * self._slots, _TABLE_AT)
        end = max(0, os.fstat(self._file).st_size - self._bytes_at)
        space = os.fstatvfs(self._file)
        budget = self._options.budget or end + space.f_bavail * space.f_frsize // 20 * 19
        table = CacheTable(fd, self._slots, budget, has_bytes=False)
        if len(words) == 8 * self._slots:
            table.load(words, end)
        if not self._is_writable():
            table.note_full()
            warnings.warn(
                f"{self._options}: {self._options.path} may not be written, or processes of another machine, container "
                "or user are using it. What it has is used, and nothing is added. Give each of these a file of its own",
                RuntimeWarning,
                stacklevel=2,
            )

    def _is_writable(self) -> bool:
        if fcntl.fcntl(self._file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            return False

    @property
    def place(self) -> Place:
        return held(self._fd)

    def read(self, key: bytes, at: int) -> tuple[Any, int, int] | None:
        try:
            head = os.pread(self._file, HEAD.size, self._bytes_at + at)
            if len(head) == HEAD.size:
                its, length, digest = HEAD.unpack(head)
                if its != key:
                    return None  # another picture, with the same tag
                if length <= os.fstat(self._file).st_size - self._bytes_at - at:
                    planes = os.pread(self._file, length, self._bytes_at + at + HEAD.size)
                    if len(planes) == length and sum_of(planes, 0, length) == digest:
                        return planes, 0, length
            self._forget(key)
        except (OSError, MemoryError):
            pass  # whatever is wrong with it, the pictures are there
        return None

    def _forget(self, key: bytes) -> None:
        if (slot := self.table.slot_of(key)) >= 0 and not self.table.is_full:
            os.pwrite(self._file, bytes(8), _TABLE_AT + 8 * slot)

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        head = HEAD.pack(key, len(planes), sum_of(planes, 0, len(planes)))
        _write(self._file, [head, planes], self._bytes_at + at)

    def note(self, slot: int, word: int) -> None:
        os.pwrite(self._file, struct.pack("<Q", word), _TABLE_AT + 8 * slot)

    def why_full(self, before: int, after: int) -> str:
        return ""


def _write(fd: int, parts: list[bytes], at: int) -> None:
    """Write all of it, or raise OSError."""
    size = sum(map(len, parts))
    done = os.pwritev(fd, parts, at)
    while done < size:  # a signal, or a disk that is nearly full
        more = os.pwrite(fd, b"".join(parts)[done:], at + done)
        if not more:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more


def _read(fd: int, size: int, at: int) -> bytes:
    """As many bytes as are there."""
    found = bytearray()
    while len(found) < size and (more := os.pread(fd, min(size - len(found), 1 << 30), at + len(found))):
        found += more
    return bytes(found)


def _grow(fd: int, size: int) -> None:
    if os.fstat(fd).st_size < size:
        with contextlib.suppress(PermissionError):  # another one has made it larger meanwhile, and it cannot shrink
            os.ftruncate(fd, size)


def _checked(file: int, path: str) -> int:
    """How many slots the file's table has.

    Raises:
        Unusable: it is of another version.
        ValueError: it is something else.
    """
    header = os.pread(file, _HEADER.size, 0)
    if len(header) == _HEADER.size and header.startswith(_MAGIC):
        _, version, slots = _HEADER.unpack(header)
        if version != _FORMAT:
            raise Unusable(
                f"{path} is of version {version}, and this shmloader reads and writes version {_FORMAT}. Delete the "
                "file, or give another path"
            )
        if _LEAST_SLOTS <= slots <= _MOST_SLOTS and not slots & (slots - 1):
            return int(slots)
    raise ValueError(f"{path} is no cache of pictures, and is not overwritten: give another path")


def _open_file(path: str, slots: int) -> int:
    """Open the file, which is made where there is none, or an empty one."""
    for _ in range(8):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
                # A FIFO would be waited for, and a device (/dev/null) replaced by a file.
                raise ValueError(f"{path} is no file, and is not overwritten: give another path")
            try:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(file).st_size:
                return file
            os.close(file)
            os.unlink(path)
        except FileNotFoundError:
            pass
        _make_file(path, slots)
    raise OSError(errno.EBUSY, f"{path} is deleted again and again")


def _make_file(path: str, slots: int) -> None:
    """Make the file under another name, so that it is whole wherever it is found; not in the place of another one."""
    made = os.path.join(os.path.dirname(path), f".cache-{os.getpid()}-{secrets.token_hex(4)}")
    file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # who shares pictures shares these
    try:
        os.pwrite(file, _HEADER.pack(_MAGIC, _FORMAT, slots), 0)
        os.posix_fallocate(file, 0, _TABLE_AT + 8 * slots)  # else a full disk would lose words and not pictures
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        os.close(file)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
