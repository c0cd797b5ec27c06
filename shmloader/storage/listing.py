"""A shard as it is listed, and its listing: its samples, and where they lie.
Refuses a sample that has an extension twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from shmloader.core.tar_members import group

__all__ = ["Listing", "RowListing", "Source", "TarListing", "grouped"]

U64, U32 = np.dtype("<u8"), np.dtype("<u4")


@dataclass(frozen=True)
class Source:
    """A shard that is listed.

    Args:
        name: Its path or URL.
        size: Its bytes.
        read: Returns its bytes from a place on, so many or up to its end.
        whole: Opens it as a file.
        short, long: How many bytes to read at a time, if headers are far from each other, and if they are near.
    """

    name: str
    size: int
    read: Callable[[int, int], bytes]
    whole: Callable[[], IO[bytes]]
    short: int
    long: int


@dataclass
class TarListing:
    """The listing of a tar archive.

    Args:
        keys: The keys of all samples, joined.
        key_ends: Where each key ends.
        sample_ends: For each sample, how many members it and all samples before it have.
        places, sizes: Where each member's bytes lie in the archive.
        kinds: The number of each member's extension.
        extensions: The extensions, by their numbers.
    """

    keys: bytes
    key_ends: Any
    sample_ends: Any
    places: Any
    sizes: Any
    kinds: Any
    extensions: list[bytes]

    @property
    def samples(self) -> int:
        """How many samples the shard has."""
        return len(self.key_ends)


@dataclass
class RowListing:
    """The listing of a file of tables.

    Args:
        rows: The rows of each row group, or record batch.
    """

    rows: Any

    @property
    def samples(self) -> int:
        """How many samples the shard has."""
        return int(self.rows.sum())


Listing = TarListing | RowListing


def grouped(shard: str, names: bytes, members: bytes) -> TarListing:
    """Groups members into samples.

    Args:
        shard: The archive.
        names, members: Of all members; see group().

    Raises:
        ValueError: A sample has two members of one extension.
    """
    try:
        keys, *words, kinds, extensions = group(names, members)
    except KeyError as error:
        raise ValueError(
            f"{shard}: {error.args[0]!r} is in its sample twice. Consecutive members with one key are a sample, and a "
            "sample has each extension once. Write the shard again with another key for each sample"
        ) from None
    key_ends, sample_ends, places, sizes = (np.frombuffer(each, U64) for each in words)
    return TarListing(keys, key_ends, sample_ends, places, sizes, np.frombuffer(kinds, U32), extensions)
