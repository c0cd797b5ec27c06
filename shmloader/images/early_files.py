"""Reads files of pictures before they are needed: the kernel on a local file system, threads on any other.

NOTE [ Early files ]

    1. On a local file system the kernel reads a file while the worker decodes another one, if it is asked to.  If the
       files are in the page cache, asking only costs.  So while the process reads no block from a disk, it asks for
       one file of a batch alone.
    2. On any other (NFS, a bucket that is mounted like a folder), opening a file waits for the server.  So threads read
       the files, and keep their bytes for the decoder.  Only workers have threads, because the trainer may fork.
    3. A thread reads a file when the bytes that were read and not taken leave room, or when the decoder needs it.  A
       file that no thread has begun with is left to the decoder, and so is what is larger than all room, what changes
       meanwhile, what is no regular file, and what raises an error.
    4. Bytes serve only the batch whose indices were announced: see 6. of NOTE [ Look ahead ].
"""

from __future__ import annotations

import os
import resource
import stat
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import FileIO
from typing import Any

from shmloader.storage.remote import OfThisProcess
from shmloader.storage.threads import Threads
from shmloader.system.file_systems import is_local
from shmloader.worker.look_ahead import Announced, announced_batch, may_serve

MOST = 64 << 20  # bytes that the threads of a process have read, and the decoder has not taken
THREADS = 16
_ADVISED = 1 << 20  # bytes of a file that the kernel is asked for, so that it reads no huge one
_WAIT = 0.4  # seconds: no handler of Python's runs in a wait (SA_RESTART); the trainer asks again after half a second


@dataclass(eq=False, repr=False)
class EarlyFile(os.PathLike[str]):
    """A file that is read early.  Where only its path is wanted, this is a path."""

    path: str
    batch: weakref.ref[Announced]
    data: bytes = b""
    status: tuple[int, int] = 0, 0  # its size in bytes, once there is room for it, and its mtime in ns
    done: Future[None] = field(default_factory=Future)

    def __fspath__(self) -> str:
        return self.path


class EarlyFiles:
    """The files of one dataset that are read early: NOTE [ Early files ]."""

    def __init__(self) -> None:
        self._blocks = -1, 0  # that a process had read from disks, and its pid
        self._is_local = True

    def announce(self, samples: Any, indices: Iterable[Any], is_kept: Callable[[str], bool] | None = None) -> None:
        """Begin to read files that will be needed; returns at once.

        Args:
            samples: tuples of a path and anything else, by index.
            indices: of the samples that will be needed, in that order.
            is_kept: whether a picture is in a cache, so that its file will not be read; None: there is no cache.
        """
        paths = []
        for index in indices:
            with suppress(Exception):  # __getitem__ raises it
                if isinstance(path := samples[index][0], (str, os.PathLike)):
                    paths.append(os.fsdecode(path))  # because an os.PathLike of the user's may have no hash
        if self._is_local:
            blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock, os.getpid()
            few, self._blocks = blocks == self._blocks, blocks
            self._is_local = all(_advise(path, is_kept) for path in paths[: 1 if few else None])
        if not self._is_local and (batch := announced_batch()) is not None:
            _readers().announce(paths, batch, is_kept)

    def source(self, path: Any) -> Any:
        """What to read a picture from: its file's bytes, if a thread has read them, or its path."""
        if self._is_local or not isinstance(path, (str, os.PathLike)):  # bytes are a picture, as in decode()
            return path
        return _readers().take(os.fsdecode(path)) or path


def _opened(path: str, is_kept: Callable[[str], bool] | None) -> FileIO:
    """A regular file that is not kept.  Nothing else is opened, nor waited for: the writer of a FIFO would notice."""
    if (is_kept is not None and is_kept(path)) or not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} need not or cannot be read early")
    return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


def _advise(path: str, is_kept: Callable[[str], bool] | None) -> bool:
    """Ask the kernel to read a file, if it is local; returns false if it is not."""
    try:
        with _opened(path, is_kept) as file:
            if here := is_local(os.fstat(file.fileno()).st_dev):
                os.posix_fadvise(file.fileno(), 0, _ADVISED, os.POSIX_FADV_WILLNEED)
            return here
    except (OSError, TypeError, ValueError) as error:  # whoever reads the file later raises them
        if isinstance(error, OSError) and error.errno is None:  # a handler's, such as a watchdog's TimeoutError
            raise
    return True


class _Readers:
    """The threads of a worker that read files for all its datasets, and what they have read."""

    def __init__(self) -> None:
        self._threads, self._changed = Threads(THREADS), threading.Condition()
        self._files: dict[str, EarlyFile] = {}  # that were announced and not taken

    def announce(self, paths: list[str], batch: weakref.ref[Announced], is_kept: Callable[[str], bool] | None) -> None:
        """Read files for a batch, and drop those of earlier batches."""
        with self._changed:
            self._files = {path: file for path, file in self._files.items() if may_serve(file.batch)}
            self._changed.notify_all()
            for path in paths:
                if path not in self._files:
                    file = self._files[path] = EarlyFile(path, batch)
                    file.done = self._threads.submit(partial(self._read, file, is_kept))

    def take(self, path: str) -> EarlyFile | None:
        """A file, once it is read; None if no thread has begun with it, or cannot read it, or for another batch."""
        with self._changed:
            file = self._files.pop(path, None)
            self._changed.notify_all()
        if file is None or file.done.cancel() or not may_serve(file.batch):
            return None
        while not file.done.done():
            wait([file.done], _WAIT)
        return file if file.data else None

    def _read(self, file: EarlyFile, is_kept: Callable[[str], bool] | None) -> None:
        with suppress(Exception), _opened(file.path, is_kept) as opened:  # otherwise its future would be in a cycle
            size, mtime = (status := os.fstat(opened.fileno())).st_size, status.st_mtime_ns
            with self._changed:
                while file in (due := self._files.values()) and size <= MOST < size + sum(one.status[0] for one in due):
                    self._changed.wait()
                file.status = (size if size <= MOST else 0), mtime
            if file.status[0] > 0 and may_serve(file.batch):  # 0 also of a FIFO or a device that took its place
                data = opened.read(size + 1)
                file.data = data if len(data) == size else b""


_readers = OfThisProcess(_Readers)  # because a fork has none of its parent's threads
