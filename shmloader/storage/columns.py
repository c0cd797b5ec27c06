"""From what is known of each shard to the columns of an index, and back for shards that have not changed."""

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

    shard, stamp: text, of each shard.  shard_samples: samples of all shards up to each.
    Of tars: key: text, of each sample; sample_members: members of all samples up to each; member_place, member_size,
    member_kind: of each member; extension: text; sparse: JSON.
    Of tables: group_rows: rows of all groups up to each; shard_groups: groups of all shards up to each.
    """
    columns: Columns = {}
    _text(columns, "shard", (shard.encode("utf-8", "surrogateescape") for shard in shards))
    _text(columns, "stamp", (of.stamp.encode() for of in listings))
    tars = [of for of in listings if isinstance(of, TarListing)]
    rows = [of for of in listings if isinstance(of, RowListing)]
    columns["shard_samples"] = _ends(len(of.key_ends) for of in tars) if tars else _ends(of.samples for of in rows)
    if kind == TAR:
        columns |= _of_tars(tars)
    else:
        columns["shard_groups"] = _ends(len(of.rows) for of in rows)
        columns["group_rows"] = np.cumsum(np.concatenate([of.rows for of in rows]), dtype=U64)
    return columns


def _of_tars(tars: list[TarListing]) -> Columns:
    columns: Columns = {"key": b"".join(of.keys for of in tars)}
    columns["key_ends"] = _joined([of.key_ends for of in tars], [len(of.keys) for of in tars])
    members = [len(of.places) for of in tars]
    columns["sample_members"] = _joined([of.sample_ends for of in tars], members)
    columns["member_place"] = np.concatenate([of.places for of in tars])
    columns["member_size"] = np.concatenate([of.sizes for of in tars])
    numbers: dict[bytes, int] = {}
    kinds = []
    for of in tars:
        own = [numbers.setdefault(extension, len(numbers)) for extension in of.extensions]
        kinds.append(np.asarray(own, U32)[of.kinds] if own else of.kinds)
    columns["member_kind"] = np.concatenate(kinds).astype(U32, copy=False)
    _text(columns, "extension", numbers)
    sparse: dict[int, Parts] = {}
    before = 0
    for of, count in zip(tars, members, strict=True):
        sparse |= {before + member: parts for member, parts in of.sparse.items()}
        before += count
    columns["sparse"] = json.dumps(sparse).encode() if sparse else b""
    return columns


def _ends(counts: Iterable[int]) -> Any:
    return np.cumsum(np.fromiter(counts, U64), dtype=U64)


def _joined(ends: list[Any], sizes: list[int]) -> Any:
    """The ends of all parts, which are counted from each part's beginning, from the first part's."""
    begins = np.cumsum([0, *sizes[:-1]], dtype=U64)
    return np.concatenate([end + begin for end, begin in zip(ends, begins, strict=True)]).astype(U64, copy=False)


def _text(columns: Columns, name: str, pieces: Iterable[bytes]) -> None:
    several = list(pieces)
    columns[name] = b"".join(several)
    columns[f"{name}_ends"] = _ends(map(len, several))


def listings_in(index: IndexFile, shards: Iterable[int]) -> dict[int, Listing]:
    """What an index knows of some of its shards, by their numbers."""
    ends = [0, *index["shard_samples"]]
    return {at: (_tar if index.kind == TAR else _rows)(index, at, ends[at], ends[at + 1]) for at in shards}


def _tar(index: IndexFile, at: int, begin: int, end: int) -> TarListing:
    key_ends, members = index["key_ends"], index["sample_members"]
    first_key, last_key = (key_ends[of - 1] if of else 0 for of in (begin, end))
    first, last = (members[of - 1] if of else 0 for of in (begin, end))
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
        {int(of) - first: [(a, b) for a, b in parts] for of, parts in sparse.items() if first <= int(of) < last},
    )


def _rows(index: IndexFile, at: int, begin: int, end: int) -> RowListing:
    groups = index["shard_groups"]
    first, last = (groups[at - 1] if at else 0), groups[at]
    ends = index.array("group_rows")[first:last]
    return RowListing(index.text("stamp", at), np.diff(ends, prepend=np.asarray(begin, U64)))
