"""Finds the index of a list of shards, or makes it.  Only shards that have changed since are listed again.
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
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from shmloader.storage.dali_index import list_by_dali
from shmloader.storage.index_columns import columns_of, listings_in
from shmloader.storage.index_file import IndexFile, write
from shmloader.storage.listing import Listing
from shmloader.storage.names import TAR, is_remote
from shmloader.storage.remote import Asker, asking, stamp_of
from shmloader.storage.row_listing import list_rows_local, list_rows_remote
from shmloader.storage.tar_listing import list_local, list_remote

__all__ = ["Wanted", "find_or_make", "local_stamp"]

_VERSION = "1"  # of the listings; with another number, every index is made again
_THREADS = 8


@dataclass(frozen=True)
class Wanted:
    """The index that a dataset wants.

    Args:
        shards: Paths and URLs.
        kind: Their format.
        counted: How many samples some shards have, according to a list of `wids`.
        path: The index's file; None: beside the shards, or in the user's cache.
        options: For fsspec.
        progress: Whether to draw a progress bar.
    """

    shards: Sequence[str]
    kind: str
    counted: dict[str, int]
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
    stamps = _local_stamps(wanted)
    found = None if rebuild else _found(wanted, stamps)
    if found is not None and not _changed(found, stamps):
        return found
    with _alone(wanted):
        if not rebuild:  # another process may have made it meanwhile
            found = _found(wanted, stamps)
            if found is not None and not _changed(found, stamps):
                return found
        return _made(wanted, stamps, found)


def _found(wanted: Wanted, stamps: list[str | None]) -> IndexFile | None:
    """The existing index of these shards.  If there are two, it is the one with fewer changed shards."""
    several = []
    for path in wanted.places():
        try:
            index = IndexFile(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            if wanted.path is not None and not _is_index(path):
                raise
            continue
        if index.kind == wanted.kind and index.has_texts("shard", wanted.names()):
            several.append(index)
    return min(several, key=lambda index: len(_changed(index, stamps)), default=None)


def _is_index(path: str) -> bool:
    """Whether a file may be overwritten, because it is empty or an index, perhaps a damaged one."""
    with open(path, "rb") as file:
        return file.read(14) in (b"shmloader inde", b"")


def _local_stamps(wanted: Wanted) -> list[str | None]:
    """The stamp of each local shard; None for remote ones, which are checked when they are read."""
    stamps: list[str | None] = []
    for shard in wanted.shards:
        if is_remote(shard):
            stamps.append(None)
            continue
        try:
            stamps.append(local_stamp(os.stat(shard)))
        except FileNotFoundError:
            raise wanted.not_there(shard) from None
    return stamps


def _changed(index: IndexFile, stamps: list[str | None]) -> list[int]:
    """Which shards have changed since the index was made."""
    if None not in stamps and index.has_texts("stamp", stamps):
        return []
    known = index.texts("stamp")
    return [at for at, (now, then) in enumerate(zip(stamps, known, strict=True)) if now is not None and now != then]


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


def _made(wanted: Wanted, stamps: list[str | None], old: IndexFile | None) -> IndexFile:
    changed = range(len(stamps)) if old is None or None in stamps else _changed(old, stamps)
    listings = {} if old is None else listings_in(old, sorted({*range(len(stamps))} - {*changed}))
    with _bar(wanted.progress, len(changed)) as done:
        here = [at for at in changed if stamps[at] is not None]
        remote = [at for at in changed if stamps[at] is None]
        listings |= _listed_here(wanted, here, done)
        if remote:
            listings |= asking(wanted.options, _questions(wanted, remote, done))
    ordered = [listings[at] for at in range(len(stamps))]
    _agree(wanted, ordered)
    return _kept(wanted, columns_of(wanted.kind, wanted.names(), ordered))


def _listed_here(wanted: Wanted, which: list[int], done: Callable[[], None]) -> dict[int, Listing]:
    """Lists local shards, several at a time, because reading them does not hold the GIL."""

    def one(at: int) -> Listing:
        found = _listed(wanted.kind, wanted.shards[at])
        done()
        return found

    if len(which) < 2:  # here, because Ctrl-C has to wait for a thread
        return {at: one(at) for at in which}
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        futures = {at: threads.submit(one, at) for at in which}
        try:
            return {at: future.result() for at, future in futures.items()}
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _listed(kind: str, shard: str) -> Listing:
    for _ in range(2):
        before = local_stamp(os.stat(shard))
        listing: Listing = list_by_dali(shard) or list_local(shard) if kind == TAR else list_rows_local(kind, shard)
        if local_stamp(os.stat(shard)) == before:
            listing.stamp = before
            return listing
    raise RuntimeError(f"{shard} changes while it is read. Wait until its writer has closed it")


def _questions(
    wanted: Wanted, which: list[int], done: Callable[[], None]
) -> Callable[[Asker], Awaitable[dict[int, Listing]]]:
    async def ask(asker: Asker) -> dict[int, Listing]:
        async def one(at: int) -> tuple[int, Listing]:
            shard = wanted.shards[at]
            try:
                info = await asker.call("info", shard)
            except FileNotFoundError:
                raise wanted.not_there(shard) from None
            listing: Listing
            if info.get("size") is None:
                raise ValueError(
                    f"{shard} has no size: the server does not say how many bytes it has, so it cannot be read at "
                    "random. Use a server that answers requests for ranges, or copy the shard"
                )
            if wanted.kind == TAR:
                listing = await list_remote(shard, asker, int(info["size"]))
            else:
                listing = await list_rows_remote(wanted.kind, shard, asker, int(info["size"]))
            listing.stamp = stamp_of(info)
            done()
            return at, listing

        return dict(await asker.all(one, which))

    return ask


def _agree(wanted: Wanted, listings: list[Listing]) -> None:
    """Compare the listings with the numbers in a list of `wids`."""
    for shard, listing in zip(wanted.shards, listings, strict=True):
        expected = wanted.counted.get(shard, listing.samples)
        if expected != listing.samples:
            raise ValueError(
                f"{shard} has {listing.samples:,} samples, and the list of shards says {expected:,}. One of them "
                "is out of date. Copy the shard again, or make the list again: widsindex create"
            )


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
def _bar(wanted: bool, shards: int) -> Iterator[Callable[[], None]]:
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
        yield lambda: (bar.update(), None)[1]
