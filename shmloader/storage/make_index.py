"""Finds the index of a list of shards, or makes it, also if one of them has changed since.
Decides where the index lies (beside the shards, or in the user's cache); others wait while one process makes it.

tar_listing.py lists a tar archive's members, and cython_ext/storage/sample_groups.pxi groups them into samples.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from shmloader.storage.index_columns import columns_of
from shmloader.storage.index_file import IndexFile, write
from shmloader.storage.listing import Listing, Source
from shmloader.storage.names import TAR, is_remote
from shmloader.storage.remote import RemoteFiles, asking, stamp_of
from shmloader.storage.row_listing import list_rows
from shmloader.storage.tar_listing import list_tar

__all__ = ["Wanted", "find_or_make", "local_stamp"]

_VERSION = "2"  # of the listings; with another number, every index is made again
_THREADS_HERE, _THREADS_FAR = 8, 32  # that list shards, local ones and remote ones
_LOCAL_READS = 1 << 12, 1 << 18  # see Source
_REMOTE_READS = 1 << 16, 4 << 20


@dataclass(frozen=True)
class Wanted:
    """The index that a dataset wants.

    Args:
        shards: Paths and URLs.
        kind: Their format.
        path: The index's file; None: beside the shards, or in the user's cache.
        options: For fsspec.
        progress: Whether to draw a progress bar.
    """

    shards: Sequence[str]
    kind: str
    path: str | None
    options: dict[str, Any]
    progress: bool

    def places(self) -> list[str]:
        """Where the file may be, best first."""
        if self.path is not None:
            return [self.path]
        folders = {os.path.dirname(shard) for shard in self.shards}
        if len(folders) == 1 and not is_remote(self.shards[0]):
            # The name is made from base names, so that it is the same wherever the folder is mounted.
            return [self._file(folders.pop(), map(os.path.basename, self.shards)), self._file(_cache(), self.shards)]
        return [self._file(_cache(), self.shards)]

    def names(self) -> list[str]:
        return [os.path.basename(shard) if not is_remote(shard) else shard for shard in self.shards]

    def not_there(self, shard: str) -> FileNotFoundError:
        """The error for a shard that does not exist."""
        return FileNotFoundError(
            f"{shard} is not there. It is shard {self.shards.index(shard):,} of {len(self.shards):,}. Correct "
            "the name, or name only shards that are there"
        )

    def _file(self, folder: str, names: Any) -> str:
        hashed = blake2b(digest_size=8)
        for name in (_VERSION, self.kind, *names):
            hashed.update(name.encode("utf-8", "surrogateescape") + b"\0")
        return os.path.join(folder, f"shmloader-{hashed.hexdigest()}.index")


def _cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "shmloader")


def local_stamp(status: os.stat_result) -> str:
    """A text that changes with a file: its size, and the time of its last change."""
    return f"{status.st_size} {status.st_mtime_ns}"


def find_or_make(wanted: Wanted, rebuild: bool = False) -> IndexFile:
    """The index of the shards as they are now.

    Args:
        wanted: The index that is wanted.
        rebuild: Whether to make it even if it exists.

    Raises:
        FileNotFoundError: A shard does not exist.
        ValueError: A shard cannot be listed.
        OSError: The index can be written nowhere.
    """
    if not rebuild and (found := _found(wanted)) is not None:
        return found
    with _alone(wanted):
        if not rebuild and (found := _found(wanted)) is not None:  # another process has made it meanwhile
            return found
        return _made(wanted)


def _found(wanted: Wanted) -> IndexFile | None:
    """The existing index of these shards, if none of the local ones has changed since; see tars.py for remote ones."""
    for path in wanted.places():
        try:
            index = IndexFile(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            if wanted.path is not None and not _is_index(path):
                raise
            continue
        if index.kind == wanted.kind and index.texts("shard") == wanted.names():
            pairs = zip(wanted.shards, index.texts("stamp"), strict=True)
            if all(is_remote(shard) or _stamp_here(wanted, shard) == stamp for shard, stamp in pairs):
                return index
    return None


def _stamp_here(wanted: Wanted, shard: str) -> str:
    try:
        return local_stamp(os.stat(shard))
    except FileNotFoundError:
        raise wanted.not_there(shard) from None


def _is_index(path: str) -> bool:
    """Whether a file may be overwritten, because it is empty or an index, perhaps a damaged one."""
    with open(path, "rb") as file:
        return file.read(14) in (b"shmloader inde", b"")


# ---------------------------------------------------------------------------------------------------------- making one


@contextlib.contextmanager
def _alone(wanted: Wanted) -> Iterator[None]:
    """Have one process make an index while others that want it wait.

    It only saves work, and no result depends on it: see NOTE [ Index file ].  If the process dies, the kernel unlocks
    the file.
    """
    file: io.FileIO | None = None  # an object, which closes itself if a signal's handler raises before close()
    path = ""
    for place in wanted.places():
        folder, name = os.path.split(place)
        path = os.path.join(folder, f".{name}.lock")
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            file = io.FileIO(path, "a")
            break
    try:
        if file is not None:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)
            file.close()


def _made(wanted: Wanted) -> IndexFile:
    """List all shards, several at a time, because reading them does not hold the GIL."""
    stop = threading.Event()
    is_far = any(map(is_remote, wanted.shards))
    with (
        _bar(wanted.progress, len(wanted.shards)) as done,
        concurrent.futures.ThreadPoolExecutor(_THREADS_FAR if is_far else _THREADS_HERE) as threads,
        asking(wanted.options) if is_far else contextlib.nullcontext() as files,
    ):
        futures = [threads.submit(_listed, wanted, shard, files, stop) for shard in wanted.shards]
        try:
            listed = [(future.result(), done())[0] for future in futures]
        except BaseException:  # such as Ctrl-C: the threads are joined when they have ended
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    stamps, listings = zip(*listed, strict=True)
    return _kept(wanted, columns_of(wanted.kind, wanted.names(), stamps, listings))


def _listed(wanted: Wanted, shard: str, files: RemoteFiles | None, stop: threading.Event) -> tuple[str, Listing]:
    """A shard's stamp and its listing.  The stamp comes first, and is not that of a shard that changes meanwhile."""
    with contextlib.ExitStack() as opened:
        try:
            if files is not None and is_remote(shard):
                stamp, source = _far(shard, files)
            else:
                stamp, source = _here(shard, opened, stop)
        except FileNotFoundError:
            raise wanted.not_there(shard) from None
        return stamp, list_tar(source) if wanted.kind == TAR else list_rows(wanted.kind, source)


def _here(shard: str, opened: contextlib.ExitStack, stop: threading.Event) -> tuple[str, Source]:
    fd = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    status = os.fstat(fd)

    def read(begin: int, count: int) -> bytes:
        if stop.is_set():
            raise concurrent.futures.CancelledError
        return os.pread(fd, count, begin)

    return local_stamp(status), Source(shard, status.st_size, read, lambda: open(shard, "rb"), *_LOCAL_READS)


def _far(shard: str, files: RemoteFiles) -> tuple[str, Source]:
    info = files.call("info", shard)
    if info.get("size") is None:
        raise ValueError(
            f"{shard} has no size: the server does not say how many bytes it has, so it cannot be read at random. Use "
            "a server that answers requests for ranges, or copy the shard"
        )
    size = int(info["size"])

    def read(begin: int, count: int) -> bytes:
        data: bytes = files.call("cat_file", shard, start=begin, end=min(begin + count, size))
        return data

    return stamp_of(info), Source(shard, size, read, lambda: io.BytesIO(read(0, size)), *_REMOTE_READS)


def _kept(wanted: Wanted, columns: dict[str, Any]) -> IndexFile:
    """Write the index to the first place where that is possible."""
    failures = []
    for path in wanted.places():
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write(path, wanted.kind, columns)
            return IndexFile(path)
        except OSError as error:
            failures.append(f"{path}: {error.strerror or error}")
    raise OSError(
        f"the index of {len(wanted.shards):,} shards can be written nowhere: {'; '.join(failures)}. Workers map it, so "
        "it has to be a file. Give index= a path that can be written"
    )


@contextlib.contextmanager
def _bar(wanted: bool, shards: int) -> Iterator[Callable[[], object]]:
    """A progress bar over shards, if stderr is a terminal and the work takes more than a second."""
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        print(f"indexing {shards:,} shards ...", file=sys.stderr)
        yield lambda: None
        return
    with tqdm(total=shards, desc="indexing", unit=" shards", leave=False, delay=1) as bar:
        yield bar.update
