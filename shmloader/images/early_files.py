"""Decides how files of pictures are read before they are needed: by the kernel, by threads, or not at all.
Where opening a file is slow, threads of a worker read them, and keep a limited number of bytes.

NOTE [ Early files ]

A loader announces the pictures of its next batches.  What helps depends on where their files lie.  To find out,
the process counts the blocks that it reads from disks, and measures how long opening a file takes:

    1. On a disk, the kernel reads a file while the worker decodes another one, if it is asked to (posix_fadvise).
    2. If the files are in the page cache, nothing helps, and opening them a second time only costs.  The kernel counts
       the blocks that a process reads from disks.  Until the count changes, only one file of a batch is opened early,
       to learn whether opening has become slow.
    3. On a network mount, opening a file waits for the server, and some file systems (FUSE) drop the file's pages when
       it is opened again.  So if opening is slow, threads read the files, and their bytes are kept for the decoder.
       Only workers have these threads.  The trainer has none, because it may fork.  So if opening is slow, the trainer
       reads no file early.  When the threads' reads become quick, the worker asks the kernel again, as in 1.

All datasets of a process share the threads.  MOST bounds the bytes that the threads have read and the decoder has not
taken.  The decoder itself reads a file that does not fit, one that changes while a thread reads it, and whatever is no
regular file.  If a thread fails, the decoder reads the file itself, too, and raises the error.

Bytes serve only the batch whose indices were announced.  If another sample of the batch raises, nobody takes them, and
the file may change before a later batch needs it.  We do not compare the file's status when the bytes are taken.
Otherwise the decoder would wait for the server, once for each file.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

from torch.utils.data import get_worker_info

from shmloader.core.process import is_handlers
from shmloader.storage.read_ahead import ReadAhead
from shmloader.storage.threads import Threads
from shmloader.system.endings import in_del
from shmloader.worker.look_ahead import Announced, announced_batch, may_serve

__all__ = ["EarlyFile", "EarlyFiles"]

MOST = 64 << 20  # bytes that threads have read and the decoder has not taken
SLOW = 250e-6  # seconds to open a file; on a local disk it takes 3 us, or 30 if nothing of the file is in memory
THREADS = 16
_ADVISED = 1 << 20  # bytes of a file that the kernel is asked for, so that large files do not fill the memory
_PROBED = 4  # files that are opened before it is judged whether that is slow
_FEW = 8  # reads by threads, too few to tell how long one takes
_WAIT = 0.4  # seconds: no handler of Python's runs in a wait (SA_RESTART); the trainer asks again after half a second
_GUESS = 128 << 10  # assumed bytes of a file, until some files were read


class EarlyFile(os.PathLike[str]):
    """A file that was read early.  Where only its path is wanted, this is a path.

    Attributes:
        path: of the file.
        data: its bytes.
        status: its size in bytes, and its mtime in ns.
    """

    __slots__ = ("data", "path", "status")

    def __init__(self, path: str, data: bytes, status: tuple[int, int]) -> None:
        self.path, self.data, self.status = path, data, status

    def __fspath__(self) -> str:
        return self.path


class EarlyFiles:
    """The files of one dataset that are read early, in the way that suits them: NOTE [ Early files ].

    Attributes:
        by_threads: whether threads read them, because opening a file is slow.
    """

    by_threads: bool

    def __init__(self) -> None:
        self._forget()

    def announce(self, samples: Any, indices: Iterable[Any], is_kept: Callable[[str], bool] | None = None) -> None:
        """Begin to read files that will be needed; returns at once.

        Args:
            samples: tuples of a path and anything else, by index.
            indices: of the samples that will be needed, in that order.
            is_kept: whether a picture is in a cache, so that its file will not be read; None: there is no cache.
        """
        if self._pid != os.getpid():
            self._forget()
        if not self.by_threads and (self._is_off or self._needs_nothing(samples, indices, is_kept)):
            return
        paths = list(_paths(samples, indices))
        if not self.by_threads:
            self._advise(paths, is_kept)
        if self.by_threads:
            self._read(paths, is_kept)

    def source(self, path: Any) -> Any:
        """What to read a picture from: its file's bytes, if a thread has read them, or its path."""
        reads = self._ahead
        reading = None if reads is None or not _is_path(path) else reads.take(os.fsdecode(path))
        return path if reading is None else reading.taken() or path

    def __reduce__(self) -> tuple[type[EarlyFiles], tuple[()]]:
        return EarlyFiles, ()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._blocks = -1
        self.by_threads = False
        self._is_off = not hasattr(os, "posix_fadvise")
        self._ahead: ReadAhead | None = None
        self._readers: _Readers | None = None
        self._seen = _Seen()

    def _needs_nothing(self, samples: Any, indices: Iterable[Any], is_kept: Callable[[str], bool] | None) -> bool:
        """Whether the last files came from memory, and the first one of these opens quickly."""
        blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        if blocks != self._blocks:
            self._blocks = blocks
            return False
        return all(took < SLOW for took in _advised(islice(_paths(samples, indices), 1), is_kept))

    def _advise(self, paths: Sequence[str], is_kept: Callable[[str], bool] | None) -> None:
        for begin in range(0, len(paths), _PROBED):
            took = _advised(paths[begin : begin + _PROBED], is_kept)
            if took and median(took) >= SLOW:
                self.by_threads = get_worker_info() is not None
                self._is_off = not self.by_threads  # to open each file twice would only take longer
                return

    def _read(self, paths: Sequence[str], is_kept: Callable[[str], bool] | None) -> None:
        seen = self._seen
        if len(seen.took) >= _FEW:
            self.by_threads = median(seen.took) >= SLOW
            seen.took.clear()
        if self._ahead is None or self._readers is None:
            self._ahead, self._readers = ReadAhead(MOST), _readers_of_process()
        guess, readers, batch = seen.guess(), self._readers, announced_batch()
        self._ahead.announce((path, guess, partial(_Reading, path, readers, seen, is_kept, batch)) for path in paths)


def _is_path(value: Any) -> bool:
    """Whether it names a file, as in decode(): bytes are a picture."""
    return isinstance(value, (str, os.PathLike))


def _paths(samples: Any, indices: Iterable[Any]) -> Iterator[str]:
    """The files' paths as strings: an os.PathLike of the user's may have no hash."""
    for index in indices:
        try:
            path = samples[index][0]
            name = os.fsdecode(path) if _is_path(path) else None
        except Exception as error:  # __getitem__ raises it
            if is_handlers(error):
                raise
            continue
        if name is not None:
            yield name


def _advised(paths: Iterable[str], is_kept: Callable[[str], bool] | None) -> list[float]:
    """Ask the kernel to read files; returns how many seconds it took to open each of them."""
    took, now = [], time.perf_counter
    for path in paths:
        try:
            if is_kept is not None and is_kept(path):
                continue
            begin = now()
            file = _open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                took.append(now() - begin)
                os.posix_fadvise(file, 0, _ADVISED, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)
        except (OSError, TypeError, ValueError) as error:  # whoever reads the file later raises them
            if is_handlers(error):
                raise
    return took


class _Room:
    """Bounds the bytes that the threads of a process have read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = 0

    def take(self, size: int) -> bool:
        """Reserve room for a file; whether there is room."""
        with self._lock:
            fits = self._held + size <= MOST
            self._held += size if fits else 0
            return fits

    def give(self, size: int) -> None:
        """Give room back."""
        with self._lock:
            self._held -= size


class _Readers:
    """The threads of a process that read files, and the room for these."""

    def __init__(self) -> None:
        self.threads, self.room = Threads(THREADS), _Room()


_readers: weakref.WeakValueDictionary[int, _Readers] = weakref.WeakValueDictionary()  # by process, because it may fork


def _readers_of_process() -> _Readers:
    return _readers.setdefault(os.getpid(), _Readers())


class _Seen:
    """What the threads have seen of a dataset's files."""

    def __init__(self) -> None:
        self.took: list[float] = []  # seconds that each of the last reads took
        self._files = self._bytes = 0

    def note(self, size: int) -> None:
        """Note the size of a file.  Two threads may lose one of theirs."""
        self._files, self._bytes = self._files + 1, self._bytes + size

    def guess(self) -> int:
        """The bytes of a file that nobody has opened yet."""
        return self._bytes // self._files if self._files else _GUESS


class _Reading:
    """A file that a thread reads, or will read, or has read.  It has its room until it is taken, or nobody has it.

    Args:
        path: of the file.
        readers: the threads, and the room.
        seen: what threads have seen of the dataset's files.
        is_kept: see EarlyFiles.announce().
        batch: for which it is read (may_serve()); None: any batch gets the bytes.
    """

    def __init__(
        self,
        path: str,
        readers: _Readers,
        seen: _Seen,
        is_kept: Callable[[str], bool] | None,
        batch: weakref.ref[Announced] | None,
    ) -> None:
        self._path, self._room, self._seen, self._is_kept = path, readers.room, seen, is_kept
        self._batch = batch
        self._size = 0
        self._future = readers.threads.submit(self._read_or_not)

    def taken(self) -> EarlyFile | None:
        """The file, once it is read; None if no thread has begun to read it, or cannot, or for another batch."""
        if self._future.cancel() or (self._batch is not None and not may_serve(self._batch)):
            return None
        while not self._future.done():
            wait([self._future], _WAIT)
        found: EarlyFile | None = self._future.result()
        self._give_back()
        return found

    def cancel(self) -> None:
        """Drop it."""
        self._future.cancel()

    @in_del
    def __del__(self) -> None:
        self._give_back()  # of no cycle, so never while the room is locked

    def _give_back(self) -> None:
        size, self._size = self._size, 0
        self._room.give(size)

    def _read_or_not(self) -> EarlyFile | None:
        try:
            return self._read()
        except Exception:  # not kept in the future, because its traceback would make a cycle
            return None

    def _read(self) -> EarlyFile | None:
        path, begin = self._path, time.perf_counter()
        if self._is_kept is not None and self._is_kept(path):
            return None
        with open(path, "rb", buffering=0, opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            self._seen.note(status.st_size)
            if not self._room.take(status.st_size):
                return None
            self._size = status.st_size
            data = file.readall()
        if data is None or len(data) != status.st_size:
            return None
        self._seen.took.append(time.perf_counter() - begin)
        return EarlyFile(path, data, (status.st_size, status.st_mtime_ns))


def _open(path: str, flags: int) -> int:
    """Open a regular file.  Anything else is not opened, because its other end may notice: the writer of a FIFO does.

    Raises:
        OSError: it is no regular file, or cannot be opened.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "no regular file", path)
    return os.open(path, flags | os.O_NONBLOCK)  # if a FIFO took its place meanwhile, nobody waits for its writer
