"""Lists a tar archive: a plain one in C, all others by Python's tarfile; see NOTE [ Plain tars ].
Refuses archives that are compressed, empty, cut off or damaged, and warns of bytes after an archive's end.

find_or_make() in make_index.py calls it for shards without an index.  group() in sample_groups.pxi then puts the
members of one sample together.
"""

from __future__ import annotations

import array
import tarfile
import threading
import warnings

from shmloader.core.tar_members import NotPlain, TarMembers
from shmloader.storage.listing import Source, TarListing, grouped

__all__ = ["list_tar"]

_BLOCK = 512
_TAIL = 1 << 20  # bytes after the end of an archive that are checked for a second one
_MAGIC = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip, and tar"),
}
_one_at_a_time = threading.Lock()  # for what takes the memory of a whole shard


def list_tar(shard: Source) -> TarListing:
    """The samples of an archive.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no archive, is compressed, damaged or cut off, or a sample has an extension twice.
    """
    members, begin, data = TarMembers(), 0, shard.read(0, shard.short)
    _refuse_others(shard, data)
    try:
        while members.feed(data, begin) and members.at < shard.size:
            # If the next header is near, the whole archive is read.  If it is far, the bytes up to it are skipped.
            is_near = members.at - begin < 4 * max(len(data), shard.short)
            begin = members.at
            data = shard.read(begin, max(shard.long if is_near else shard.short, members.needed))
            if len(data) < min(members.needed, shard.size - begin):
                raise EOFError
            if shard.size - begin < members.needed:
                members.end_of_file(shard.size - begin)
        if not members.ended:
            _refuse_cut_off(shard, members.at)
            members.end_of_file(0)
    except (NotPlain, EOFError):
        with _one_at_a_time:
            return _by_tarfile(shard)
    is_here = begin <= members.at and begin + len(data) >= shard.size
    _warn_of_rest(shard, members.at, data[members.at - begin :] if is_here else _behind(shard, members.at, _TAIL))
    return grouped(shard.name, *members.found())


def _by_tarfile(shard: Source) -> TarListing:
    """List an archive by Python's tarfile."""
    names, listed, sparse = bytearray(), array.array("Q"), ""
    try:
        with (
            shard.whole() as file,
            tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive,
        ):
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # otherwise tarfile keeps all of them
                if not member.isreg():
                    continue
                if member.sparse is not None:
                    sparse = member.name
                    break
                names += member.name.encode("utf-8", "surrogateescape")
                listed.extend((len(names), member.offset_data, member.size))
            end = archive.offset
    except (tarfile.TarError, ValueError, IndexError, EOFError) as error:  # tarfile hardly checks sparse members
        if "unexpected end of data" in str(error):
            _refuse_cut_off(shard, shard.size + 1)
        raise _damaged(shard, str(error)) from None
    if sparse:
        raise ValueError(
            f"{shard.name} has a sparse member, {sparse!r}, whose bytes do not lie together. Write the shard again, "
            "without --sparse"
        )
    _refuse_cut_off(shard, end)
    header = _behind(shard, end, _BLOCK)
    if header.strip(b"\0"):
        _refuse_cut_off(shard, end + _BLOCK)
        raise _damaged(shard, f"there is no header at byte {end:,}")
    _warn_of_rest(shard, end, _behind(shard, end, _TAIL))
    return grouped(shard.name, bytes(names), listed.tobytes())


# ------------------------------------------------------------------------------------------------------ other files


def _refuse_others(shard: Source, first: bytes) -> None:
    for magic, (name, remedy) in _MAGIC.items():
        if first.startswith(magic):
            raise ValueError(
                f"{shard.name} is a {name} file, so no sample in it can be read without all samples before it. Shards "
                f"are read at random, and must not be compressed. Unpack it ({remedy})"
            )
    if shard.size == 0:
        raise ValueError(
            f"{shard.name} is empty, and a tar archive has 1,024 bytes or more. Write it again, or leave it out"
        )


def _behind(shard: Source, at: int, size: int) -> bytes:
    """Bytes of a shard that may have none there.  Stores answer a request for no bytes by an error."""
    return shard.read(at, size) if at < shard.size else b""


def _refuse_cut_off(shard: Source, needed: int) -> None:
    if needed > shard.size:
        raise ValueError(
            f"{shard.name} is cut off: it has {shard.size:,} bytes, and its last member ends after them. Copy or write "
            "it again, or leave it out"
        )


def _damaged(shard: Source, why: str) -> ValueError:
    return ValueError(f"{shard.name} is no tar archive, or is damaged: {why}. Copy or write it again, or leave it out")


def _warn_of_rest(shard: Source, end: int, rest: bytes) -> None:
    """Warn if bytes follow the end of an archive, as in two archives that were joined by `cat`."""
    if rest.strip(b"\0"):
        warnings.warn(
            f"{shard.name} has more bytes after its end at byte {end:,}. They are not read, as in WebDataset. If two "
            "archives were joined by cat, join them by tar --concatenate, or name each of them",
            RuntimeWarning,
            stacklevel=2,
        )
