"""shmloader.Shards: samples of WebDataset's tar archives, Parquet and Arrow files, at random.
Checks the options, which have their defaults here, and decides which index is used: a worker takes its trainer's.
"""

from __future__ import annotations

import multiprocessing
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.utils.data import Dataset

from shmloader.storage.decoders import Decode
from shmloader.storage.index_file import IndexFile
from shmloader.storage.local_files import LocalFiles
from shmloader.storage.make_index import Wanted, find_or_make
from shmloader.storage.names import TAR, format_of, local_path, shards_of
from shmloader.storage.read_ahead import ReadAhead
from shmloader.storage.remote import OfThisProcess, RemoteFiles
from shmloader.storage.tables import Tables
from shmloader.storage.tars import Column, Tars

__all__ = ["Shards"]

MiB = 1 << 20


class Shards(Dataset[Any]):
    """A map-style dataset of samples that lie in shards: WebDataset's tar archives, Parquet or Arrow files.

    An index records where each sample lies, so any sample can be read without the others.  Shuffling, samplers, resume,
    ranks and stealing work as for any other dataset.  Local shards are read by `pread`.  Remote ones (s3://, gs://,
    hf://, https://) are read by fsspec, in ranges.

    Shards are not divided among ranks or workers.  The sampler shuffles the indices of samples, and DistributedSampler
    divides them among ranks.  The schedule gives each batch of indices to a worker (trainer/schedule.py).  So there may
    be fewer shards than workers, and no worker is idle because of that.

    The first len() makes the index, with a progress bar; or `shmloader index URLS` makes it before.  It is a file that
    all workers map, beside the shards or in ~/.cache/shmloader.  It is made again if a shard's size or time changes.

    Args:
        urls: One path or URL, or several.  They may have braces (`train-{000..127}.tar`) or a pattern (`train-*.tar`).
            It may also be a JSON file in which `wids` lists shards.
        columns: Which parts of a sample are read; None (default): all.  Name members of a tar by their extensions, and
            columns of a table by their names.  "jpg;png" takes the first that the sample has, and "image=jpg;png" also
            renames it to "image".
        decode: For tars, False (default) leaves members as bytes.  True decodes txt, cls, json, npy and npz as
            WebDataset's decode() does, and unpacks .gz first (json.gz).  A dict does the same, and maps further
            extensions to functions of bytes, or to None if they stay bytes.  For tables, a dict maps
            columns to functions of values.
        index: The index's file (default: beside the shards, or in the user's cache).
        storage_options: For fsspec's file system: credentials, timeouts.
        open_files: How many shards a process has open at a time (default 64).
        prefetch_bytes: Bytes of samples that a process reads before they are needed (default 64 MiB); see
            __prefetch__().
        cache_bytes: Bytes of decoded row groups that a process keeps (default 256 MiB).
        progress: Whether a progress bar is drawn while an index is made (default True).

    Attributes:
        urls: The shards: absolute paths, and URLs.
        index_path: The path of the index.  Reading this attribute makes the index if it is missing or out of date.

    Raises:
        ValueError: No shard is named, one is compressed, or they are of several formats.
        FileNotFoundError: A pattern matches nothing.

    A sample of a tar is the dict that WebDataset makes, in its order: "__key__", "__url__" and the members by their
    extensions.  A sample of a table is a dict of its columns.

    Example:
        >>> shards = shmloader.Shards("train-{000000..000127}.tar", decode=True)
        >>> shards[5]["cls"]
        207
        >>> train = images.fuse(shards, images.training(224), image="jpg", label="cls")
        >>> loader = shmloader.DataLoader(train, batch_size=256, shuffle=True, num_workers=8)
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        columns: Sequence[str] | None = None,
        *,
        decode: bool | Mapping[str, Decode | None] = False,
        index: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        open_files: int = 64,
        prefetch_bytes: int = 64 * MiB,
        cache_bytes: int = 256 * MiB,
        progress: bool = True,
    ) -> None:
        options = dict(storage_options or {})
        for name, number, least in (
            ("open_files", open_files, 1),
            ("prefetch_bytes", prefetch_bytes, 0),
            ("cache_bytes", cache_bytes, 0),
        ):
            if number < least:
                raise ValueError(f"{name} is {number}. It has to be {least} or more. Leave it out for the default")
        if isinstance(columns, str):
            raise TypeError(f"columns is {columns!r}, a string. It has to be a sequence. Write columns=[{columns!r}]")
        self.urls = shards_of(urls, options)
        self.columns = None if columns is None else tuple(columns)
        self.decode = decode
        self._kind = format_of(self.urls)
        self._wanted = None if columns is None else named_columns(columns)
        path = None if index is None else local_path(os.fspath(index))
        self._which = Wanted(self.urls, self._kind, path, options, progress)
        self._cache_bytes = cache_bytes
        self._local = OfThisProcess(partial(LocalFiles, open_files))
        self._remote = OfThisProcess(partial(RemoteFiles, options))
        self._ahead = OfThisProcess(partial(ReadAhead, prefetch_bytes))
        self._read_by: Tars | Tables | None = None  # once there is an index
        self._known: tuple[str, str] | None = None  # path and sum of the index in the process that pickled this object

    @property
    def index_path(self) -> str:
        """The path of the index, which is made if it is missing or out of date."""
        return self._source().index.path

    @property
    def is_tar(self) -> bool:
        """Whether the shards are tar archives."""
        return self._kind == TAR

    def make_index(self) -> IndexFile:
        """Make the index again, even if it is up to date."""
        self._read_by = self._read_through(find_or_make(self._which, rebuild=True))
        return self._read_by.index

    def facts(self) -> dict[str, Any]:
        """The index's path, its bytes, and its number of members or row groups."""
        index = self._source().index
        parts = len(index["member_place" if self.is_tar else "group_rows"])
        return {"index": index.path, "bytes": os.stat(index.path).st_size, "parts": parts}

    def __len__(self) -> int:
        return len(self._source())

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return self._source().get(self._checked(index), self._wanted)

    def values(self, index: Any, columns: Sequence[Column], decoded: Sequence[bool]) -> list[Any]:
        """Some columns of a sample, as bytes or decoded; for datasets that make pictures of them."""
        return self._source().values(self._checked(index), columns, decoded)

    def __place__(self, index: Any) -> int:
        """The number of a sample's shard, or of its row group: reading another sample from there costs little.

        A loader with `group_by="place"` calls it.
        """
        return self._source().place(self._checked(index))

    def __prefetch__(self, indices: Iterable[Any], columns: Sequence[Column] | None = None) -> None:
        """Begin to read samples that will be needed; returns at once.

        The kernel reads local shards (posix_fadvise).  Remote ones are read by requests, several at a time, up to
        `prefetch_bytes`.  Samples that are skipped later are dropped.  If a read fails, __getitem__ raises the error.

        Args:
            indices: The indices of the samples, in the order in which they will be needed.
            columns: See values(); None: those that __getitem__ reads.
        """
        count = len(self._source())
        known = [at + count if at < 0 else at for at in map(operator.index, indices) if -count <= at < count]
        self._source().prefetch(known, self._wanted if columns is None else columns)

    def __getstate__(self) -> dict[str, Any]:
        known = self._known if self._read_by is None else (self._read_by.index.path, self._read_by.index.sum)
        return {**self.__dict__, "_read_by": None, "_known": known}

    def __repr__(self) -> str:
        return f"Shards of {len(self.urls):,} {self._kind} files, from {self.urls[0]}"

    # ------------------------------------------------------------------------------------------------------------------

    def _checked(self, index: Any) -> int:
        at, count = operator.index(index), len(self._source())
        if not -count <= at < count:
            raise IndexError(f"sample {at:,} is asked for, and the shards have {count:,}. Ask for 0 to {count - 1:,}")
        return at + count if at < 0 else at

    def _source(self) -> Tars | Tables:
        if self._read_by is None:
            self._read_by = self._read_through(self._found())
        return self._read_by

    def _found(self) -> IndexFile:
        """The index that the parent process has; without a parent, the index of the shards as they are now."""
        if self._known is not None:
            try:
                return IndexFile(*self._known)
            except (OSError, ValueError):
                if multiprocessing.parent_process() is not None:  # the sampler's indices refer to the parent's index
                    raise
        return find_or_make(self._which)

    def _read_through(self, index: IndexFile) -> Tars | Tables:
        if self._kind == TAR:
            return Tars(self.urls, index, self._local, self._remote, self._ahead, self.decode)
        return Tables(self._kind, self.urls, index, self._remote, self._ahead, self.decode, self._cache_bytes)


def named_columns(columns: Iterable[str]) -> list[Column]:
    """Columns as a user names them: "jpg", "jpg;png", "image=jpg;png"."""
    found = []
    for column in columns:
        called, equals, names = column.rpartition("=")
        found.append((called if equals else column, tuple(names.split(";"))))
    return found
