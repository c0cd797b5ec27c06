"""Turns the listings of shards into the columns of an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shmloader.storage.index_file import Columns
from shmloader.storage.listing import U32, U64, Listing, RowListing, TarListing
from shmloader.storage.names import TAR

__all__ = ["columns_of"]


def columns_of(kind: str, shards: Sequence[str], stamps: Sequence[str], listings: Sequence[Listing]) -> Columns:
    """The columns of an index.

    Args:
        kind: The format of the shards.
        shards: Their names.
        stamps: Texts that change with the shards' content: see stamp_of() and local_stamp().
        listings: Of the shards.

    Every index has shard and stamp (text, one for each shard), and shard_samples (running total of samples, one for
    each shard).  An index of tars also has key (text, one for each sample), sample_members (running total of members,
    one for each sample), member_place, member_size and member_kind (one for each member), and extension (text).
    An index of tables also has group_rows (running total of rows, one for each group) and shard_groups
    (running total of groups, one for each shard).
    """
    columns: Columns = {}
    _text(columns, "shard", (shard.encode("utf-8", "surrogateescape") for shard in shards))
    _text(columns, "stamp", map(str.encode, stamps))
    tars = [listing for listing in listings if isinstance(listing, TarListing)]
    tables = [listing for listing in listings if isinstance(listing, RowListing)]
    columns["shard_samples"] = _ends(listing.samples for listing in listings)
    if kind == TAR:
        columns |= _of_tars(tars)
    else:
        columns["shard_groups"] = _ends(len(table.rows) for table in tables)
        columns["group_rows"] = np.cumsum(np.concatenate([table.rows for table in tables]), dtype=U64)
    return columns


def _of_tars(tars: list[TarListing]) -> Columns:
    columns: Columns = {"key": b"".join(tar.keys for tar in tars)}
    columns["key_ends"] = _joined([tar.key_ends for tar in tars], [len(tar.keys) for tar in tars])
    members = [len(tar.places) for tar in tars]
    columns["sample_members"] = _joined([tar.sample_ends for tar in tars], members)
    columns["member_place"] = np.concatenate([tar.places for tar in tars])
    columns["member_size"] = np.concatenate([tar.sizes for tar in tars])
    numbers: dict[bytes, int] = {}
    kinds = []
    for tar in tars:
        own = [numbers.setdefault(extension, len(numbers)) for extension in tar.extensions]
        kinds.append(np.asarray(own, U32)[tar.kinds] if own else tar.kinds)
    columns["member_kind"] = np.concatenate(kinds).astype(U32, copy=False)
    _text(columns, "extension", numbers)
    return columns


def _ends(counts: Iterable[int]) -> Any:
    return np.cumsum(np.fromiter(counts, U64), dtype=U64)


def _joined(ends: list[Any], sizes: list[int]) -> Any:
    """Joins the ends of several parts.  Each part counts from its own beginning; the result counts from the first's."""
    begins = np.cumsum([0, *sizes[:-1]], dtype=U64)
    return np.concatenate([end + begin for end, begin in zip(ends, begins, strict=True)]).astype(U64, copy=False)


def _text(columns: Columns, name: str, pieces: Iterable[bytes]) -> None:
    several = list(pieces)
    columns[name] = b"".join(several)
    columns[f"{name}_ends"] = _ends(map(len, several))
