"""The file of `rows=`: where the rows of JPEG files begin, so that later epochs decode only a crop's rows.
Decides which marks are still valid; replaces a file of other pictures, and refuses one that another dataset uses.

A JPEG file can only be read from its beginning: to know where a row begins, one must have read all rows above it.

The file has a header, an entry of fixed size for each sample, and then the marks of the pictures, 12 bytes for each row
of 8 or 16 pixels, in the order in which they were made.  A worker that makes marks appends them and then writes their
entry, with one write each.  An entry names the picture's path, size and modification time, and has a checksum over
itself and the marks.  An entry that a death or a full disk tore has the wrong checksum, and is ignored.

The header names the dataset that the file belongs to, by a hash of the paths of all samples in their order.  Each
process compares the hash when it opens the file.  Otherwise two datasets with one file would overwrite each other's
entries: both would make marks in each epoch, and the file would grow in each.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import secrets
import stat
import struct
import sys
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

from shmloader.system.cleanup import in_del

__all__ = ["Rows"]

_MAGIC = b"shmloader rows 2"
_HEADER = struct.Struct("<16sQ16s")  # magic, entries, hash of the samples' paths
_ENTRY = struct.Struct("<QQQIII")  # size and mtime of the picture; where its marks are, bytes of them; path; checksum
_SUMMED = _ENTRY.size - 4
_WORD = 2**64 - 1  # bits of a modification time that an entry has: the time may be before 1970, or after 2554
_LONGEST = 12 * 65536 // 8  # bytes: the marks of the tallest picture, with rows of 8 pixels


_used: weakref.WeakSet[Rows] = weakref.WeakSet()  # all of this process


class Rows:
    """The marks of a dataset's pictures, in a file.  Any number of processes may read and write it at once.

    Args:
        path: of the file.  It is made if it does not exist, and replaced if it belongs to other pictures.  If it is a
            link, its target is the file.
        pictures: the path of each sample.

    Raises:
        OSError: the file cannot be made.
        ValueError: the path names something else, or another dataset of this process uses the file.
    """

    def __init__(self, path: str | os.PathLike[str], pictures: Iterable[str | os.PathLike[str]]) -> None:
        self._path = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
        self._samples, self._header = _header_for(pictures)
        self._is_full = False
        self._is_anothers = False  # whether the file now belongs to other pictures
        # The process that opened the descriptors; one to read and write; one to append (-1: the file is read-only).
        self._files: tuple[int, int, int] | None = None
        self._claim()
        if not self._is_there():
            self._make()

    @property
    def takes_more(self) -> bool:
        """Whether put() still has an effect; otherwise nobody need make marks."""
        return not self._is_full

    def find(self, at: int, path: str, status: tuple[int, int]) -> bytes | None:
        """The marks of a picture; None if the file has none, or the picture has changed.

        Args:
            at: the number of the sample.
            path: of the picture.
            status: its size in bytes, and its mtime in ns.
        """
        if self._is_anothers or not 0 <= at < self._samples:
            return None
        try:
            file = self._opened()[0]
            entry = os.pread(file, _ENTRY.size, _HEADER.size + at * _ENTRY.size)
            if len(entry) < _ENTRY.size:
                return None
            size, mtime, place, length, name, checksum = _ENTRY.unpack(entry)
            if (size, mtime) != (status[0], status[1] & _WORD) or name != _sum_of_path(path):
                return None
            if not 0 < place < 2**63 or length > _LONGEST:
                return None  # a broken entry must neither cost memory nor raise
            marks = os.pread(file, length, place)
        except _AnothersError:
            self._leave_it()
            return None
        except OSError:
            return None  # the marks are lost, but the pictures are there
        return marks if zlib.crc32(marks, zlib.crc32(entry[:_SUMMED])) == checksum else None

    def put(self, at: int, path: str, status: tuple[int, int], marks: bytes) -> None:
        """Store the marks of a picture; see find()."""
        if self._is_full or not 0 <= at < self._samples:
            return
        try:
            file, end = self._opened()
            if end < 0:
                raise OSError("it is read-only")
            if os.write(end, marks) != len(marks):
                raise OSError("only a part of the marks was written")
            place = os.lseek(end, 0, os.SEEK_CUR) - len(marks)
            entry = _ENTRY.pack(status[0], status[1] & _WORD, place, len(marks), _sum_of_path(path), 0)[:_SUMMED]
            checksum = zlib.crc32(marks, zlib.crc32(entry))
            os.pwrite(file, entry + struct.pack("<I", checksum), _HEADER.size + at * _ENTRY.size)
        except _AnothersError:
            self._leave_it()
        except OSError as error:
            self._is_full = True
            warnings.warn(f"{self._path} cannot be written ({error}). It takes no more rows.", stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": None}

    @in_del
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # otherwise this module's names may be None, and the descriptors go with the process
            self._close()

    def _close(self) -> None:
        opened, self._files = getattr(self, "_files", None), None
        if opened is not None and opened[0] == os.getpid():
            os.close(opened[1])
            if opened[2] >= 0:
                os.close(opened[2])

    def _leave_it(self) -> None:
        self._is_full = self._is_anothers = True
        warnings.warn(
            f"{self._path} now belongs to other pictures, because another dataset replaced it. Its rows are not used. "
            "Give each dataset a rows= of its own.",
            RuntimeWarning,
            stacklevel=3,
        )

    def _claim(self) -> None:
        """Raise if another dataset of this process uses the file."""
        if any(self._is_in_the_way(other) for other in list(_used)):
            gc.collect()  # the other may be dead, but part of a cycle
            if any(self._is_in_the_way(other) for other in list(_used)):
                raise ValueError(
                    f"rows={self._path!r} is in use by another dataset, of other pictures. Give each dataset a file "
                    "of its own."
                )
        _used.add(self)

    def _is_in_the_way(self, other: Rows) -> bool:
        return other._path == self._path and other._header != self._header

    def _is_there(self) -> bool:
        """Whether the file exists and belongs to these pictures.  Raises if the path names something else."""
        try:
            mode = os.stat(self._path).st_mode
            # open() would wait for a FIFO, and os.replace() would replace a device (/dev/null) if the user may.
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                with open(self._path, "rb") as file:
                    header = file.read(_HEADER.size)
                if len(header) == _HEADER.size and header.startswith(_MAGIC) and header != self._header:
                    warnings.warn(
                        f"{self._path} was made from other pictures, and is replaced. Pictures were added, removed or "
                        "renamed, or two datasets have the same file. If they do, give each a rows= of its own.",
                        RuntimeWarning,
                        stacklevel=5,
                    )
                if not header or header.startswith(_MAGIC[:14]):
                    return header == self._header
        except FileNotFoundError:
            return False
        raise ValueError(f"{self._path} is no file of rows. It is not overwritten. Give another path.")

    def _make(self) -> None:
        """Make the file under another name and rename it, so that nobody finds a part of it."""
        made = os.path.join(os.path.dirname(self._path), f".rows-{os.getpid()}-{secrets.token_hex(4)}")
        # Not by tempfile, whose files only their owner may read: users who share the pictures share the marks.
        file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, self._header)
            os.ftruncate(file, _HEADER.size + self._samples * _ENTRY.size)  # an entry of zeros is no entry
            os.replace(made, self._path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # a signal may come when the file has its final name
                os.unlink(made)
            raise
        finally:
            os.close(file)

    def _opened(self) -> tuple[int, int]:
        """Descriptors that this process opened: a forked process would move its parent's position in the file."""
        if self._files is None or self._files[0] != os.getpid():
            self._files = os.getpid(), *self._open()
        return self._files[1:]

    def _open(self) -> tuple[int, int]:
        """Open the file, to read and write and to append.  Another dataset may have replaced it.

        Raises:
            _AnothersError: it belongs to other pictures.
            OSError: it cannot be opened.
        """
        file = end = -1
        try:
            try:
                file = os.open(self._path, os.O_CLOEXEC | os.O_RDWR)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                file = os.open(self._path, os.O_CLOEXEC | os.O_RDONLY)
            else:
                end = os.open(self._path, os.O_CLOEXEC | os.O_RDWR | os.O_APPEND)
            # If the file was replaced between the two opens, entries would go to one file and their marks to the other.
            for each in (file, end):
                if each >= 0 and os.pread(each, _HEADER.size, 0) != self._header:
                    raise _AnothersError
            if end >= 0 and not os.path.samestat(os.fstat(file), os.fstat(end)):
                raise OSError("it was replaced at this moment")
            return file, end
        except BaseException:
            for each in (file, end):
                if each >= 0:
                    os.close(each)
            raise


class _AnothersError(Exception):
    """The file belongs to other pictures."""


def _header_for(pictures: Iterable[str | os.PathLike[str]]) -> tuple[int, bytes]:
    """The number of pictures, and the header of their file."""
    count, hashed = 0, blake2b(digest_size=16)
    for path in pictures:
        count += 1
        hashed.update(os.fsencode(path) + b"\0")
    return count, _HEADER.pack(_MAGIC, count, hashed.digest())


def _sum_of_path(path: str) -> int:
    return zlib.crc32(os.fsencode(path))
