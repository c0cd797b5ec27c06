"""Lists the row groups of a Parquet file, and the record batches of an Arrow file.
Refuses damaged files, and remote Arrow files, because Arrow files are mapped.  Says if pyarrow is missing.
"""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import numpy as np

from shmloader.storage.listing import U64, RowListing, Source
from shmloader.storage.names import PARQUET, is_remote

__all__ = ["arrow_batches", "list_rows", "pyarrow"]

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


def list_rows(kind: str, shard: Source) -> RowListing:
    """The rows of each group of a file.

    Raises:
        ValueError: It is no file of this kind, is damaged, or is a remote Arrow file.
    """
    if kind != PARQUET and is_remote(shard.name):
        raise ValueError(
            f"{shard.name} is a remote Arrow file. Arrow files are mapped, so they must be local. Copy it to a local "
            "disk, or write it as Parquet"
        )
    arrow = pyarrow()
    try:
        counts = _of_parquet(shard) if kind == PARQUET else [batch.num_rows for batch in arrow_batches(shard.name)]
    except arrow.ArrowInvalid as error:
        raise ValueError(
            f"{shard.name} is no {kind.capitalize()} file, or is damaged: {error}. Copy or write it again, or leave it "
            "out"
        ) from None
    return RowListing(np.asarray(counts, U64))


def _of_parquet(shard: Source) -> list[int]:
    """The rows of each group of a Parquet file, of which only the end is read."""
    end = shard.read(max(0, shard.size - _FOOTER), _FOOTER)
    needed = int.from_bytes(end[-8:-4], "little") + 8
    if len(end) < needed <= shard.size:
        end = shard.read(shard.size - needed, needed)
    metadata = pyarrow("pyarrow.parquet").read_metadata(io.BytesIO(b"PAR1" + end[-needed:]))
    return [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]


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
