"""Reads rows of Parquet and Arrow files, by an index of their row groups.
Decides which decoded row groups a process keeps (`cache_bytes`) and which are read early; refuses missing columns and
changed shards.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from shmloader.storage.decoders import Decode
from shmloader.storage.index_file import IndexFile
from shmloader.storage.local_files import changed, gone
from shmloader.storage.make_index import local_stamp
from shmloader.storage.names import PARQUET, is_remote
from shmloader.storage.remote import OfThisProcess, stamp_of
from shmloader.storage.row_listing import arrow_batches, pyarrow
from shmloader.storage.tars import Column

__all__ = ["Tables"]

_OPEN = 64  # how many files' metadata or mappings are kept


class Tables:
    """Rows, each as a dict of its columns.

    A row group of Parquet is decoded as a whole.  Each process keeps the groups that it used last, bounded in bytes.
    So rows of one group should be read one after the other; `place` returns the group of a row.

    Args:
        kind: Parquet or Arrow.
        shards: Paths and URLs.
        index: The shards' index.
        remote, ahead, decode: See Shards.
        most: Bytes of decoded row groups that a process keeps; at least one group is kept.
    """

    def __init__(
        self,
        kind: str,
        shards: Sequence[str],
        index: IndexFile,
        remote: OfThisProcess,
        ahead: OfThisProcess,
        decode: bool | Mapping[str, Decode | None],
        most: int,
    ) -> None:
        self._kind = kind
        self._shards = shards
        self.index = index
        self._remote = remote
        self._ahead = ahead
        self._decode: Mapping[str, Decode | None] = {} if isinstance(decode, bool) else decode
        self._most = most
        self._kept = OfThisProcess(_Kept)
        self.decoded_groups = 0  # by this process

    def __len__(self) -> int:
        samples = self.index["shard_samples"]
        return int(samples[len(samples) - 1])

    def place(self, index: int) -> int:
        """The number of a row's group, among all groups of all shards."""
        return self.index.place("group_rows", index)[0]

    def get(self, index: int, wanted: Sequence[Column] | None) -> dict[str, Any]:
        """A row: a dict of its columns, as Python objects, or as `decode` returns them."""
        group, row = self.index.place("group_rows", index)
        table = self._table(group, wanted)
        found = {}
        for called, name in self._names(table, group, wanted):
            value = table.column(name)[row].as_py()
            decode = self._decode.get(name)
            found[called] = value if decode is None else decode(value)
        return found

    def values(self, index: int, wanted: Sequence[Column], decoded: Sequence[bool]) -> list[Any]:
        """Columns of a row, as Python objects; pictures' bytes as buffers over Arrow's memory, without a copy."""
        group, row = self.index.place("group_rows", index)
        table = self._table(group, wanted)
        found = []
        for is_decoded, (_, name) in zip(decoded, self._names(table, group, wanted), strict=True):
            value = table.column(name)[row]
            found.append(value.as_py() if is_decoded else _buffer(value))
        return found

    def prefetch(self, indices: Iterable[int], wanted: Sequence[Column] | None) -> None:
        """Begin to read the row groups of rows that will be needed; see ReadAhead."""
        left, reads = self._ahead().most, []
        for group in dict.fromkeys(map(self.place, indices)):
            key = group, _key(wanted)
            if self._kind != PARQUET or key in self._kept().tables:
                continue
            shard, own = self.index.place("shard_groups", group)
            if is_remote(self._shards[shard]):
                with contextlib.suppress(Exception):  # __getitem__ raises the error
                    size = self._kept().sizes.get(group, self._most // 4)
                    begin = partial(self._remote().submit, partial(self._read, group, wanted))
                    reads.append((key, size, begin))
            else:
                left = self._advise(shard, own, wanted, left)
        if reads:
            self._ahead().announce(reads)

    # ------------------------------------------------------------------------------------------------------- row groups

    def _table(self, group: int, wanted: Sequence[Column] | None) -> Any:
        kept, key = self._kept(), (group, _key(wanted))
        with kept.lock:  # so that two threads do not decode one group twice
            if (table := kept.tables.get(key)) is not None:
                kept.tables.move_to_end(key)
                return table
            read = self._ahead().take(key)
            if read is not None:
                with contextlib.suppress(Exception, CancelledError):  # if the early read failed, read again
                    table = read.result()
            if table is None:
                table = self._read(group, wanted)
            self.decoded_groups += self._kind == PARQUET
            kept.put(key, table, self._most)
            kept.sizes[group] = table.nbytes
            return table

    def _read(self, group: int, wanted: Sequence[Column] | None) -> Any:
        """Decode a row group.

        Raises:
            FileNotFoundError, RuntimeError: The shard is gone, or has changed.
            KeyError: It has no such column.
        """
        shard, own = self.index.place("shard_groups", group)
        url = self._shards[shard]
        try:
            if self._kind != PARQUET:
                return pyarrow().Table.from_batches([self._of_shard(shard)[own]])
            metadata = self._of_shard(shard)
            there = metadata.schema.to_arrow_schema().names
            columns = None if wanted is None else [name for _, name in _chosen(there, wanted, url)]
            with self._opened(url) as source:
                file = pyarrow("pyarrow.parquet").ParquetFile(source, metadata=metadata, pre_buffer=is_remote(url))
                # Without Arrow's threads, which would compete with the other workers for cores.
                return file.read_row_group(own, columns, use_threads=False)
        except FileNotFoundError as error:
            raise gone(url) from error

    def _opened(self, url: str) -> Any:
        return self._remote().open(url) if is_remote(url) else open(url, "rb")

    def _of_shard(self, shard: int) -> Any:
        """The metadata of a Parquet file, or the batches of an Arrow file."""
        kept, url = self._kept(), self._shards[shard]
        found = kept.opened.get(shard)
        if found is None:
            now = stamp_of(self._remote().info(url).result()) if is_remote(url) else local_stamp(os.stat(url))
            if now != self.index.text("stamp", shard):
                raise changed(url)
            if self._kind == PARQUET:
                with self._opened(url) as source:
                    found = pyarrow("pyarrow.parquet").ParquetFile(source).metadata
            else:
                found = arrow_batches(url)
            kept.opened[shard] = found
            while len(kept.opened) > _OPEN:
                kept.opened.popitem(last=False)
        return found

    def _advise(self, shard: int, own: int, wanted: Sequence[Column] | None, left: int) -> int:
        """Have the kernel read the columns of a group, `left` bytes at most; returns how many bytes are left then."""
        with contextlib.suppress(OSError, RuntimeError, KeyError):  # __getitem__ raises the error
            metadata = self._of_shard(shard)
            group, there = metadata.row_group(own), metadata.schema.to_arrow_schema().names
            names = None if wanted is None else {name for _, name in _chosen(there, wanted, "")}
            file = os.open(self._shards[shard], os.O_RDONLY | os.O_CLOEXEC)
            try:
                for at in range(group.num_columns):
                    column = group.column(at)
                    if names is not None and column.path_in_schema.partition(".")[0] not in names:
                        continue
                    if (left := left - column.total_compressed_size) < 0:
                        break
                    begin = column.dictionary_page_offset or column.data_page_offset
                    os.posix_fadvise(file, begin, column.total_compressed_size, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(file)
        return left

    def _names(self, table: Any, group: int, wanted: Sequence[Column] | None) -> list[tuple[str, str]]:
        if wanted is None:
            return [(name, name) for name in table.column_names]
        return _chosen(table.column_names, wanted, self._shards[self.index.place("shard_groups", group)[0]])


class _Kept:
    """Keeps decoded groups, bounded in bytes, and metadata of files, bounded in number, for one process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tables: OrderedDict[Any, Any] = OrderedDict()
        self.opened: OrderedDict[int, Any] = OrderedDict()
        self.sizes: dict[int, int] = {}  # bytes of each group that was decoded
        self._bytes = 0

    def put(self, key: Any, table: Any, most: int) -> None:
        self.tables[key] = table
        self._bytes += table.nbytes
        while self._bytes > most and len(self.tables) > 1:
            self._bytes -= self.tables.popitem(last=False)[1].nbytes


def _key(wanted: Sequence[Column] | None) -> Any:
    return None if wanted is None else tuple(wanted)


def _chosen(there: Sequence[str], wanted: Sequence[Column], shard: str) -> list[tuple[str, str]]:
    """For each wanted column, its name in a sample and its name in the file.

    Raises:
        KeyError: There is no such column.
    """
    found = []
    for called, names in wanted:
        name = next((name for name in names if name in there), None)
        if name is None:
            raise KeyError(
                f"{shard} has no column {' and no '.join(map(repr, names))}. Its columns are {', '.join(there)}. Name "
                "one of these"
            )
        found.append((called, name))
    return found


def _buffer(value: Any) -> Any:
    """The bytes of a picture in a column.  They are not copied.

    Returns:
        A buffer if the column has binary values.  A tuple with a buffer if it has `datasets`' structs of bytes and
        path, because `datasets` turns their pictures upright.
    """
    if hasattr(value, "as_buffer"):
        return value.as_buffer()
    if hasattr(value, "keys") and "bytes" in value:
        stored = value["bytes"]
        if stored.is_valid:
            return (stored.as_buffer(),)
        with open(value["path"].as_py(), "rb") as file:
            return (file.read(),)
    raise TypeError(
        f"a column of pictures has the type {value.type}. It must have binary values, or structs of bytes and path. "
        "Name another column, or write the pictures as bytes"
    )
