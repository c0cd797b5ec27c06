"""Where the rows of JPEG files begin: kept in a file, so that from the second epoch on a crop is read from its own row.

A JPEG file can be read from its beginning only: where a row begins is known to whoever has read all rows above.

The file: a header, an entry of fixed size for each sample, and behind these the marks of the pictures, 12 bytes for a
row of 8 or 16 pixels, in the order in which they were made.  Whoever makes marks (any worker) appends them and then
writes their entry; both are one write each.  An entry says of which path, size and time of change the picture was, and
has a checksum over itself and the marks: one that was torn by a death or a full disk is none.

The header names the dataset that the file belongs to, by a hash of the paths of all samples in their order.  Each
process compares it when it opens the file.  Another dataset with this file would otherwise put its entries in the place
of these, and the other way round: both would make marks in each epoch, and the file would grow in each.
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

__all__ = ["Rows"]

_MAGIC = b"shmloader rows 2"
_HEADER = struct.Struct("<16sQ16s")  # magic, entries, hash of the samples' paths
_ENTRY = struct.Struct("<QQQIII")  # size and mtime of the picture; where its marks are, bytes of them; path; checksum
_SUMMED = _ENTRY.size - 4
_WORD = 2**64 - 1  # what an entry has of a time of change: it may be before 1970, or after 2554
_LONGEST = 12 * 65536 // 8  # bytes of marks: of rows of 8 pixels, in the tallest picture


_used: weakref.WeakSet[Rows] = weakref.WeakSet()  # those that were made in this process


class Rows:
    """Marks of the pictures of a dataset, in a file.  Any number of processes may read and write it at once.

    Args:
        path: of the file; it is made, or made anew where it belongs to other pictures.  Where it is a link, what this
            leads to is the file.
        pictures: the path of each sample.

    Raises:
        OSError: it cannot be made.
        ValueError: there is something at the path that is none of these, or another dataset of this process uses it.
    """

    def __init__(self, path: str | os.PathLike[str], pictures: Iterable[str | os.PathLike[str]]) -> None:
        self._path = os.path.realpath(os.path.expanduser(os.fsdecode(path)))
        self._samples, self._header = _header_for(pictures)
        self._is_full = False
        self._is_anothers = False  # the file belongs to other pictures by now
        # The process that opened them; to read and write, to append (-1: it may only be read).
        self._files: tuple[int, int, int] | None = None
        self._claim()
        if not self._is_there():
            self._make()

    @property
    def takes_more(self) -> bool:
        """Whether marks may still be put: else nobody need make them."""
        return not self._is_full

    def find(self, at: int, path: str, status: tuple[int, int]) -> bytes | None:
        """The marks of a picture, where they are there and it has not changed.

        Args:
            at: which sample it is.
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
                return None  # a broken entry is to cost no memory, and no error
            marks = os.pread(file, length, place)
        except _AnothersError:
            self._leave_it()
            return None
        except OSError:
            return None  # whatever is wrong with it, the pictures are there
        return marks if zlib.crc32(marks, zlib.crc32(entry[:_SUMMED])) == checksum else None

    def put(self, at: int, path: str, status: tuple[int, int], marks: bytes) -> None:
        """Keep the marks of a picture; see find()."""
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

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # else the names of this module may be None by now, and descriptors go with the process
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
        """See that no other dataset of this process uses the file."""
        if any(self._is_in_the_way(other) for other in list(_used)):
            gc.collect()  # it may be gone, and in a cycle
            if any(self._is_in_the_way(other) for other in list(_used)):
                raise ValueError(
                    f"rows={self._path!r} is in use by another dataset, of other pictures. Give each dataset a file "
                    "of its own."
                )
        _used.add(self)

    def _is_in_the_way(self, other: Rows) -> bool:
        return other._path == self._path and other._header != self._header

    def _is_there(self) -> bool:
        """Whether there is the file, of these pictures; else it may be made, unless something else is there."""
        try:
            mode = os.stat(self._path).st_mode
            # A FIFO would be waited for, and a device (/dev/null) replaced by a file, if the user may do that.
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
        """Make the file under another name, so that it is whole wherever it is found."""
        made = os.path.join(os.path.dirname(self._path), f".rows-{os.getpid()}-{secrets.token_hex(4)}")
        # Not tempfile's, which nobody else may read: who shares the pictures shares what is known of them.
        file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, self._header)
            os.ftruncate(file, _HEADER.size + self._samples * _ENTRY.size)  # entries of zeros, which are none
            os.replace(made, self._path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # a signal may strike when it has its name
                os.unlink(made)
            raise
        finally:
            os.close(file)

    def _opened(self) -> tuple[int, int]:
        """Descriptors of this process's own: a forked one would move the other's place in the file."""
        if self._files is None or self._files[0] != os.getpid():
            self._files = os.getpid(), *self._open()
        return self._files[1:]

    def _open(self) -> tuple[int, int]:
        """Open the file, to read and write and to append; another dataset may have replaced it.

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
            # One that was replaced between the two opens would take entries whose marks are in the other one.
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
    """How many pictures these are, and the header of their file."""
    count, hashed = 0, blake2b(digest_size=16)
    for path in pictures:
        count += 1
        hashed.update(os.fsencode(path) + b"\0")
    return count, _HEADER.pack(_MAGIC, count, hashed.digest())


def _sum_of_path(path: str) -> int:
    return zlib.crc32(os.fsencode(path))
