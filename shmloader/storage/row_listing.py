"""Lists the row groups of a Parquet file, and the record batches of an Arrow file.
Refuses damaged files, and remote Arrow files, because Arrow files are mapped.  Says if pyarrow is missing.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import numpy as np

from shmloader.storage.listing import U64, RowListing
from shmloader.storage.names import PARQUET
from shmloader.storage.remote import Asker

__all__ = ["arrow_batches", "list_rows_local", "list_rows_remote", "pyarrow"]

_FOOTER = 1 << 16  # bytes of the first request, at the end of a Parquet file
_MAGIC = b"ARROW1"


def pyarrow(module: str = "pyarrow") -> Any:
    """pyarrow, or a module of it.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            "Parquet and Arrow files need pyarrow, which is not installed. Run pip install 'shmloader[parquet]'."
        ) from error


def list_rows_local(kind: str, path: str) -> RowListing:
    """The rows of each group of a local file.

    Raises:
        ValueError: It is no file of this kind, or is damaged.
    """
    arrow = pyarrow()
    try:
        if kind == PARQUET:
            return _of_parquet(pyarrow("pyarrow.parquet").read_metadata(path))
        return _rows([batch.num_rows for batch in arrow_batches(path)])
    except arrow.ArrowInvalid as error:
        raise _damaged(kind, path, error) from None


async def list_rows_remote(kind: str, url: str, asker: Asker, size: int) -> RowListing:
    """The rows of each group of a file that fsspec reads."""
    if kind != PARQUET:
        raise ValueError(
            f"{url} is a remote Arrow file. Arrow files are mapped, so they must be local. Copy it to a local disk, or "
            "write it as Parquet"
        )
    arrow = pyarrow()
    try:
        end = await asker.call("cat_file", url, start=max(0, size - _FOOTER), end=size)
        needed = int.from_bytes(end[-8:-4], "little") + 8
        if len(end) < needed <= size:
            end = await asker.call("cat_file", url, start=size - needed, end=size)
        return _of_parquet(pyarrow("pyarrow.parquet").read_metadata(io.BytesIO(b"PAR1" + end[-needed:])))
    except arrow.ArrowInvalid as error:
        raise _damaged(kind, url, error) from None


def arrow_batches(path: str) -> list[Any]:
    """The record batches of an Arrow file, mapped; files and streams, which `datasets` writes."""
    arrow = pyarrow()
    mapped = arrow.memory_map(path)
    if mapped.read(len(_MAGIC)) == _MAGIC:
        mapped.seek(0)
        reader = arrow.ipc.open_file(mapped)
        return [reader.get_batch(at) for at in range(reader.num_record_batches)]
    mapped.seek(0)
    return list(arrow.ipc.open_stream(mapped))


def _of_parquet(metadata: Any) -> RowListing:
    return _rows([metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)])


def _rows(counts: list[int]) -> RowListing:
    return RowListing("", np.asarray(counts, U64))


def _damaged(kind: str, shard: str, error: Exception) -> ValueError:
    return ValueError(
        f"{shard} is no {kind.capitalize()} file, or is damaged: {error}. Copy or write it again, or leave it out"
    )
