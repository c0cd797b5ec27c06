"""Turns the listings of shards into the columns of an index, and the columns of unchanged shards into listings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shmloader.storage.index_file import Columns, IndexFile
from shmloader.storage.listing import U32, U64, Listing, Parts, RowListing, TarListing
from shmloader.storage.names import TAR

__all__ = ["columns_of", "listings_in"]


def columns_of(kind: str, shards: Sequence[str], listings: Sequence[Listing]) -> Columns:
    """The columns of an index.

    Every index has shard and stamp (text, one for each shard), and shard_samples (running total of samples, one for
    each shard).  An index of tars also has key (text, one for each sample), sample_members (running total of members,
    one for each sample), member_place, member_size and member_kind (one for each member), extension (text), and sparse
    (JSON).  An index of tables also has group_rows (running total of rows, one for each group) and shard_groups
    (running total of groups, one for each shard).
    """
    columns: Columns = {}
    _text(columns, "shard", (shard.encode("utf-8", "surrogateescape") for shard in shards))
    _text(columns, "stamp", (listing.stamp.encode() for listing in listings))
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
    sparse: dict[int, Parts] = {}
    before = 0
    for tar, count in zip(tars, members, strict=True):
        sparse |= {before + member: parts for member, parts in tar.sparse.items()}
        before += count
    columns["sparse"] = json.dumps(sparse).encode() if sparse else b""
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


def listings_in(index: IndexFile, shards: Iterable[int]) -> dict[int, Listing]:
    """The listings of some shards of an index, by the shards' numbers."""
    ends = [0, *index["shard_samples"]]
    return {at: (_tar if index.kind == TAR else _rows)(index, at, ends[at], ends[at + 1]) for at in shards}


def _tar(index: IndexFile, at: int, begin: int, end: int) -> TarListing:
    key_ends, members = index["key_ends"], index["sample_members"]
    first_key, last_key = (key_ends[count - 1] if count else 0 for count in (begin, end))
    first, last = (members[count - 1] if count else 0 for count in (begin, end))
    used, kinds = np.unique(index.array("member_kind")[first:last], return_inverse=True)
    sparse = json.loads(bytes(index["sparse"])) if len(index["sparse"]) else {}
    return TarListing(
        index.text("stamp", at),
        bytes(index["key"][first_key:last_key]),
        index.array("key_ends")[begin:end] - np.asarray(first_key, U64),
        index.array("sample_members")[begin:end] - np.asarray(first, U64),
        index.array("member_place")[first:last],
        index.array("member_size")[first:last],
        kinds.astype(U32),
        [bytes(index.bytes("extension", int(number))) for number in used],
        {
            int(member) - first: [(a, b) for a, b in parts]
            for member, parts in sparse.items()
            if first <= int(member) < last
        },
    )


def _rows(index: IndexFile, at: int, begin: int, end: int) -> RowListing:
    groups = index["shard_groups"]
    first, last = (groups[at - 1] if at else 0), groups[at]
    ends = index.array("group_rows")[first:last]
    return RowListing(index.text("stamp", at), np.diff(ends, prepend=np.asarray(begin, U64)))
