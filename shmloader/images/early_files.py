"""Reads files of pictures before they are needed: the kernel on a local file system, threads on any other.

NOTE [ Early files ]

    1. On a local file system the kernel reads a file while the worker decodes another one, if it is asked to.  If the
       files are in the page cache, asking only costs.  So while the process reads no block from a disk, it asks for
       one file of a batch alone.
    2. On any other (NFS, a bucket that is mounted like a folder), opening a file waits for the server.  So threads read
       the files, and keep their bytes for the decoder.  Only workers have threads, because the trainer may fork.
    3. A read begins when the bytes that were read and not taken leave room for it.  A file that is larger than its room
       is left to the decoder, and so is what changes meanwhile, what is no regular file, and what raises an error.
    4. Bytes serve only the batch whose indices were announced.  If another sample of it raises, nobody takes them, and
       the file may change before a later batch needs it.  To ask the server whether it did would take as long as to
       open it.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from shmloader.images.file_systems import is_local
from shmloader.storage.remote import OfThisProcess
from shmloader.storage.threads import Threads
from shmloader.worker.look_ahead import Announced, announced_batch, may_serve

__all__ = ["EarlyFile", "EarlyFiles"]

MOST = 64 << 20  # bytes that the threads of a process have read, and the decoder has not taken
THREADS = 16
_ROOM = 1 << 20  # bytes that a file may have, at least; the kernel is asked for as many, so that it reads no huge file
_WAIT = 0.4  # seconds: no handler of Python's runs in a wait (SA_RESTART); the trainer asks again after half a second

IsKept = Callable[[str], bool] | None


@dataclass(eq=False, repr=False)
class EarlyFile(os.PathLike[str]):
    """A file that was read early.  Where only its path is wanted, this is a path."""

    path: str
    data: bytes
    status: tuple[int, int]  # its size in bytes, and its mtime in ns

    def __fspath__(self) -> str:
        return self.path


class EarlyFiles:
    """The files of one dataset that are read early: NOTE [ Early files ]."""

    def __init__(self) -> None:
        self._blocks = -1, 0  # that a process had read from disks, and its pid
        self._is_local = True

    def announce(self, samples: Any, indices: Iterable[Any], is_kept: IsKept = None) -> None:
        """Begin to read files that will be needed; returns at once.

        Args:
            samples: tuples of a path and anything else, by index.
            indices: of the samples that will be needed, in that order.
            is_kept: whether a picture is in a cache, so that its file will not be read; None: there is no cache.
        """
        if self._is_local:
            blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock, os.getpid()
            few, self._blocks = blocks == self._blocks, blocks
            self._is_local = _advise(islice(_paths(samples, indices), 1 if few else None), is_kept)
        if not self._is_local and (batch := announced_batch()) is not None:
            _readers().announce(list(_paths(samples, indices)), batch, is_kept)

    def source(self, path: Any) -> Any:
        """What to read a picture from: its file's bytes, if a thread has read them, or its path."""
        if self._is_local or not isinstance(path, (str, os.PathLike)):  # bytes are a picture, as in decode()
            return path
        return _readers().take(os.fsdecode(path)) or path


def _paths(samples: Any, indices: Iterable[Any]) -> Iterator[str]:
    """The files' paths as strings: an os.PathLike of the user's may have no hash."""
    for index in indices:
        with suppress(Exception):  # __getitem__ raises it
            path = samples[index][0]
            if isinstance(path, (str, os.PathLike)):
                yield os.fsdecode(path)


def _open(path: str, flags: int) -> int:
    """Open a regular file, and nothing else, because the other end may notice: the writer of a FIFO does."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return os.open(path, flags | os.O_NONBLOCK)  # if a FIFO took its place meanwhile, nobody waits for its writer


def _advise(paths: Iterable[str], is_kept: IsKept) -> bool:
    """Ask the kernel to read files, up to the first one that is not local; returns whether there is no such file."""
    for path in paths:
        try:
            if is_kept is not None and is_kept(path):
                continue
            with open(path, "rb", buffering=0, opener=_open) as file:
                if not is_local(os.fstat(file.fileno()).st_dev):
                    return False
                os.posix_fadvise(file.fileno(), 0, _ROOM, os.POSIX_FADV_WILLNEED)
        except (OSError, TypeError, ValueError) as error:  # whoever reads the file later raises them
            if isinstance(error, OSError) and error.errno is None:  # a handler's, such as a watchdog's TimeoutError
                raise
    return True


@dataclass(eq=False)
class _Reading:
    """A file that a thread reads, or will read, or has read."""

    path: str
    batch: weakref.ref[Announced]
    is_kept: IsKept
    room: int = 0  # bytes that it may have, and once it is read those that it has
    future: Future[EarlyFile | None] | None = None


class _Readers:
    """The threads of a worker that read files for all its datasets, and what they have read."""

    def __init__(self) -> None:
        self._threads, self._lock = Threads(THREADS), threading.Lock()
        self._reads: dict[str, _Reading] = {}  # that were announced and not taken
        self._line: deque[_Reading] = deque()  # that wait for room
        self._held = 0  # bytes of room that all have
        self._seen = 1, 0  # files, and their bytes

    def announce(self, paths: list[str], batch: weakref.ref[Announced], is_kept: IsKept) -> None:
        """Read files for a batch, and drop those of earlier batches."""
        with self._lock:
            self._reads = {path: reading for path, reading in self._reads.items() if may_serve(reading.batch)}
            self._held = sum(reading.room for reading in self._reads.values())
            new = {path: _Reading(path, batch, is_kept) for path in paths if path not in self._reads}
            self._reads |= new
            self._line.extend(new.values())
            self._begin()

    def take(self, path: str) -> EarlyFile | None:
        """A file, once it is read; None if no thread has begun to read it, or cannot, or for another batch."""
        with self._lock:
            if (reading := self._reads.pop(path, None)) is None:
                return None
            self._held -= reading.room
            self._begin()
        if (future := reading.future) is None or future.cancel() or not may_serve(reading.batch):
            return None
        while not future.done():
            wait([future], _WAIT)
        return future.result()

    def _begin(self) -> None:
        room = min(MOST, max(_ROOM, 2 * self._seen[1] // self._seen[0]))
        while self._line and self._held + room <= MOST:
            reading = self._line.popleft()
            if self._reads.get(reading.path) is reading:
                reading.room, self._held = room, self._held + room
                reading.future = self._threads.submit(partial(self._read, reading))

    def _read(self, reading: _Reading) -> EarlyFile | None:
        found, size = None, 0
        with suppress(Exception):  # a future that keeps one would be in a cycle with its traceback
            if reading.is_kept is None or not reading.is_kept(reading.path):
                with open(reading.path, "rb", buffering=0, opener=_open) as file:
                    status = os.fstat(file.fileno())
                    size = status.st_size  # 0 also of a FIFO or a device that took the file's place
                    data = file.read(size + 1) if 0 < size <= reading.room else None
                    if data is not None and len(data) == size:
                        found = EarlyFile(reading.path, data, (size, status.st_mtime_ns))
        with self._lock:
            self._seen = self._seen[0] + (size > 0), self._seen[1] + size
            if self._reads.get(reading.path) is reading:
                self._held -= reading.room
                reading.room = 0 if found is None else size
                self._held += reading.room
                self._begin()
        return found


_readers = OfThisProcess(_Readers)  # because a fork has none of its parent's threads
