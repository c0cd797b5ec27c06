"""Decoded pictures in a file, as `cache="train.cache"` has them: its format and its checksums.
Refuses to overwrite any other file.  Processes of another machine, container or user than the first only read the
cache.
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
from typing import Any

from shmloader.core.cache_table import CacheTable, sum_of
from shmloader.images import cache_stores
from shmloader.images.cache_options import CacheOptions
from shmloader.images.cache_stores import HEAD, LEAST_SLOTS, MOST_SLOTS, Unusable, slots_for, write
from shmloader.system.common_memory import Place, held, open_common

__all__ = ["FileStore"]

_MAGIC = b"shmloader cache "
_FORMAT = 1
_HEADER = struct.Struct("<16sQQ")  # magic, format, slots
_TABLE_AT = 4096


class FileStore:
    """Pictures in a file: NOTE [ Cache file ].

    NOTE [ Cache file ]

        1. The file has a header, a table and pictures.  No process maps it, because reading a mapped page raises SIGBUS
           if the file was truncated, or if the disk is full or broken.  So it is read and written by system calls,
           which return an error in these cases.
        2. While the file is in use, its table is in common memory.  There, words are claimed and published as
           NOTE [ Cache table ] says.  A process that publishes an entry also writes that word to the file, after the
           picture's bytes.  So the file never has claims, not even of a dead process.
        3. After a power loss, the disk may have a word without its bytes.  So the checksum of each picture is compared
           when the picture is read.  If a picture is broken, its word in the file is cleared, and the next run keeps
           the picture again.
        4. The process that makes the common memory of a file locks the file (flock).  Processes of another machine,
           container or user cannot see that memory.  They do not get the lock either, so they only read the file.
    """

    def __init__(self, options: CacheOptions, pictures: int, first: Place | None) -> None:
        assert options.path is not None
        self._options = options
        self._file = _open_file(options.path, slots_for(4 * pictures))
        weakref.finalize(self, os.close, self._file).atexit = False
        status = os.fstat(self._file)
        self._slots = _checked(self._file, options.path)
        self._bytes_at = _TABLE_AT + 8 * self._slots
        ends = f"_{status.st_dev}_{status.st_ino}"
        self._fd = open_common(cache_stores.NAME + ends, self._begin, first)
        weakref.finalize(self, os.close, self._fd).atexit = False
        if f"{ends} " not in os.readlink(f"/proc/self/fd/{self._fd}"):  # the memory at `first` is another file's
            raise OSError(errno.ESTALE, f"{options.path} was replaced while it was in use")
        self.table = CacheTable(self._fd, has_bytes=False)
        if self.table.slots != self._slots:
            raise OSError(errno.ESTALE, f"the table of {options.path} has changed since the file was opened first")
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
                f"{self._options}: {self._options.path} cannot be written. It is read-only, or a process of another "
                "machine, container or user has it open. Its pictures are used, and none are added. Give each of these "
                "a file of its own.",
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
                    return None  # another picture with the same tag
                if length <= os.fstat(self._file).st_size - self._bytes_at - at:
                    planes = os.pread(self._file, length, self._bytes_at + at + HEAD.size)
                    if len(planes) == length and sum_of(planes, 0, length) == digest:
                        return planes, 0, length
            self._forget(key)
        except (OSError, MemoryError):
            pass  # the cached copy is lost, but the pictures are there
        return None

    def _forget(self, key: bytes) -> None:
        if (slot := self.table.slot_of(key)) >= 0 and not self.table.is_full:
            os.pwrite(self._file, bytes(8), _TABLE_AT + 8 * slot)

    def write(self, key: bytes, at: int, planes: bytes) -> None:
        head = HEAD.pack(key, len(planes), sum_of(planes, 0, len(planes)))
        write(self._file, [head, planes], self._bytes_at + at)

    def note(self, slot: int, word: int) -> None:
        os.pwrite(self._file, struct.pack("<Q", word), _TABLE_AT + 8 * slot)

    def why_full(self, before: int, after: int) -> str:
        return ""


def _read(fd: int, size: int, at: int) -> bytes:
    """Up to that many bytes; fewer if the file ends."""
    found = bytearray()
    while len(found) < size and (more := os.pread(fd, min(size - len(found), 1 << 30), at + len(found))):
        found += more
    return bytes(found)


def _checked(file: int, path: str) -> int:
    """The number of slots of the file's table.

    Raises:
        Unusable: the file has another version.
        ValueError: the file is something else.
    """
    header = os.pread(file, _HEADER.size, 0)
    if len(header) == _HEADER.size and header.startswith(_MAGIC):
        _, version, slots = _HEADER.unpack(header)
        if version != _FORMAT:
            raise Unusable(
                f"{path} has version {version}. This shmloader reads and writes version {_FORMAT}. Delete the file, or "
                "give another path."
            )
        if LEAST_SLOTS <= slots <= MOST_SLOTS and not slots & (slots - 1):
            return int(slots)
    raise ValueError(f"{path} is no cache of pictures. It is not overwritten. Give another path.")


def _open_file(path: str, slots: int) -> int:
    """Open the file; make it if it does not exist or is empty."""
    for _ in range(8):
        try:
            if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
                # open() would wait for a FIFO, and a device (/dev/null) would be replaced by a file.
                raise ValueError(f"{path} is no regular file. It is not overwritten. Give another path.")
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
    raise OSError(errno.EBUSY, f"{path} was deleted each of the 8 times that it was made")


def _make_file(path: str, slots: int) -> None:
    """Make the file under another name and link it, so that nobody finds a part of it, and no file is overwritten."""
    made = os.path.join(os.path.dirname(path), f".cache-{os.getpid()}-{secrets.token_hex(4)}")
    file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # others share the pictures, too
    try:
        os.pwrite(file, _HEADER.pack(_MAGIC, _FORMAT, slots), 0)
        os.posix_fallocate(file, 0, _TABLE_AT + 8 * slots)  # otherwise words would be lost on a full disk
        with contextlib.suppress(FileExistsError):
            os.link(made, path)
    finally:
        os.close(file)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
