"""The listing of one shard: its samples, and where they lie.
Refuses a sample that has an extension twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmloader.core.tar_members import group

__all__ = ["Listing", "RowListing", "TarListing", "grouped"]

U64, U32 = np.dtype("<u8"), np.dtype("<u4")
Parts = list[tuple[int, int]]


@dataclass
class Listing:
    """A shard's part of the columns of an index.

    Args:
        stamp: Changes with the shard's content: see stamp_of() and local_stamp().
    """

    stamp: str

    @property
    def samples(self) -> int:
        """How many samples the shard has."""
        raise NotImplementedError


@dataclass
class TarListing(Listing):
    """The listing of a tar archive.

    Args:
        keys: The keys of all samples, joined.
        key_ends: Where each key ends.
        sample_ends: For each sample, how many members it and all samples before it have.
        places, sizes: Where each member's bytes lie in the archive.  The size of a sparse member includes its holes.
        kinds: The number of each member's extension.
        extensions: The extensions, by their numbers.
        sparse: For each sparse member, by its number in the shard, its pieces: their places in the member and their
            bytes.  In the archive they lie one after the other.
    """

    keys: bytes
    key_ends: Any
    sample_ends: Any
    places: Any
    sizes: Any
    kinds: Any
    extensions: list[bytes]
    sparse: dict[int, Parts] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return len(self.key_ends)


@dataclass
class RowListing(Listing):
    """The listing of a file of tables.

    Args:
        rows: The rows of each row group, or record batch.
    """

    rows: Any

    @property
    def samples(self) -> int:
        return int(self.rows.sum())


def grouped(
    shard: str, names: bytes, ends: Any, places: Any, sizes: Any, sparse: dict[int, Parts] | None = None
) -> TarListing:
    """Groups members into samples.  The caller sets the listing's stamp.

    Args:
        shard: The archive.
        names, ends, places, sizes: Of all members; see group().
        sparse: The pieces of sparse members, by their number.

    Raises:
        ValueError: A sample has two members of one extension.
    """
    try:
        keys, key_ends, sample_ends, which, kept_places, kept_sizes, kinds, extensions = group(
            names, bytes(ends), bytes(places), bytes(sizes)
        )
    except KeyError as error:
        raise ValueError(
            f"{shard}: {error.args[0]!r} is in its sample twice. Consecutive members with one key are a sample, and a "
            "sample has each extension once. Write the shard again with another key for each sample"
        ) from None
    found = TarListing(
        stamp="",
        keys=keys,
        key_ends=np.frombuffer(key_ends, U64),
        sample_ends=np.frombuffer(sample_ends, U64),
        places=np.frombuffer(kept_places, U64),
        sizes=np.frombuffer(kept_sizes, U64),
        kinds=np.frombuffer(kinds, U32),
        extensions=extensions,
    )
    if sparse:
        of_member = {int(old): new for new, old in enumerate(np.frombuffer(which, U64))}
        found.sparse = {of_member[old]: parts for old, parts in sparse.items() if old in of_member}
    return found
