"""What an index knows of one shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shmloader.core.sample_groups import group

__all__ = ["Listing", "RowListing", "TarListing", "grouped"]

U64, U32 = np.dtype("<u8"), np.dtype("<u4")
Parts = list[tuple[int, int]]


@dataclass
class Listing:
    """A shard's part of the columns of an index.

    Args:
        stamp: Of the shard's content, see stamp_of() and local_stamp().
    """

    stamp: str

    @property
    def samples(self) -> int:
        """How many it has."""
        raise NotImplementedError


@dataclass
class TarListing(Listing):
    """Of a tar archive.

    Args:
        keys: Of the samples, one behind the other.
        key_ends: Where each ends.
        sample_ends: How many members all samples up to each have.
        places, sizes: Of each member's bytes in the archive; of a sparse member the size that it is read to.
        kinds: The number of each member's extension.
        extensions: Them.
        sparse: Of sparse members, by their number in the shard: pieces (place in the member, bytes), which lie in the
            archive one behind the other.
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
    """Of a file of tables.

    Args:
        rows: Of each row group, or record batch.
    """

    rows: Any

    @property
    def samples(self) -> int:
        return int(self.rows.sum())


def grouped(
    shard: str, names: bytes, ends: Any, places: Any, sizes: Any, sparse: dict[int, Parts] | None = None
) -> TarListing:
    """The samples of members, with a stamp that is still to come.

    Args:
        shard: Their archive.
        names, ends, places, sizes: Of all members; see group().
        sparse: Of sparse ones, by their number.

    Raises:
        ValueError: A sample has two members of one extension.
    """
    try:
        keys, key_ends, sample_ends, which, kept_places, kept_sizes, kinds, extensions = group(
            names, _words(ends), _words(places), _words(sizes)
        )
    except KeyError as error:
        raise ValueError(
            f"{shard}: {error.args[0]!r} is in its sample twice. Members that follow each other and have one key are a "
            "sample, and each of its extensions is there once. Write the shard again with another key for each sample"
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


def _words(data: Any) -> memoryview:
    return memoryview(data).cast("B").cast("Q")
