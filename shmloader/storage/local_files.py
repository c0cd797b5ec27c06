"""Reads local shards; a process keeps `open_files` of them open.
Has the errors of shards, local and remote, that are gone, are too short, or have changed since they were indexed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable

from shmloader.storage.make_index import local_stamp
from shmloader.system.cleanup import in_del

__all__ = ["LocalFiles", "changed", "gone", "short"]


class _Descriptor:
    """A descriptor that closes when its last user drops it, because one thread may drop it while another one reads."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @in_del
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "fd"):
            os.close(self.fd)


class LocalFiles:
    """Reads parts of files.  Each process has its own (OfThisProcess), because a thread may hold the lock at a fork.

    Args:
        most: How many files are open at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, place: int, size: int, stamp: str) -> bytes:
        """A part of a file.

        Args:
            path: The file.
            place, size: Where the part begins, and its length, in bytes.
            stamp: The local_stamp() that the file must have when it is opened.

        Raises:
            FileNotFoundError, RuntimeError: The file is gone, or has changed; see gone() and changed().
        """
        file = self._file(path, stamp)
        data = os.pread(file.fd, size, place)
        while len(data) < size:  # one call of Linux reads 2 GB at most
            more = os.pread(file.fd, size - len(data), place + len(data))
            if not more:
                raise short(path, place, size, len(data))
            data += more
        return data

    def advise(self, path: str, place: int, size: int, stamp: str) -> None:
        """Have the kernel read a part before it is needed; an error is left to read()."""
        with contextlib.suppress(OSError, RuntimeError):
            os.posix_fadvise(self._file(path, stamp).fd, place, size, os.POSIX_FADV_WILLNEED)

    def _file(self, path: str, stamp: str) -> _Descriptor:
        with self._lock:
            found = self._open.get(path)
            if found is not None:
                self._open.move_to_end(path)
                return found
        try:
            file = _Descriptor(path)
        except FileNotFoundError:
            raise gone(path) from None
        if local_stamp(os.fstat(file.fd)) != stamp:
            raise changed(path)
        with self._lock:
            self._open[path] = file
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return file


def gone(shard: str) -> FileNotFoundError:
    """The error for a shard that is in the index and does not exist."""
    return FileNotFoundError(
        f"{shard} is gone. It is in the index, so it was there when the index was made. "
        "Put it back, or make the dataset again without it"
    )


def changed(shard: str) -> RuntimeError:
    """The error for a shard that has changed since its index was made."""
    return RuntimeError(
        f"{shard} has changed since its index was made, so places in the index are wrong. Its size and time must stay "
        "the same. Make the dataset again, or run `shmloader index --rebuild` on its shards"
    )


def short(shard: str, place: int, size: int, got: int) -> OSError:
    """The error for a read that returned too few bytes."""
    return OSError(
        f"{shard} gave {got:,} of {size:,} bytes at byte {place:,}. According to the index it has them all, so the "
        "shard was cut off, or the answer was. Look at the shard, or copy it again"
    )
