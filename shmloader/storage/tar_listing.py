"""Lists a tar archive: a plain one in C, all others by Python's tarfile; see NOTE [ Plain tars ].
Refuses archives that are compressed, empty, cut off or damaged, and warns of bytes after an archive's end.

find_or_make() in make_index.py calls it for shards without an index.  group() in sample_groups.pxi then puts the
members of one sample together.
"""

from __future__ import annotations

import array
import io
import os
import tarfile
import warnings
from typing import Any

from shmloader.core.tar_members import NotPlain, TarMembers
from shmloader.storage.listing import Parts, TarListing, grouped
from shmloader.storage.remote import Asker

__all__ = ["list_local", "list_remote"]

_BLOCK = 512
_TAIL = 1 << 20  # bytes after the end of an archive that are checked for a second one
_FIRST, _STEP = 1 << 16, 4 << 20  # bytes of a request: if members are large, and if they are small
_MAGIC = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\x00": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
    b"PK\x03\x04": ("zip", "unzip, and tar"),
}


def list_local(path: str) -> TarListing:
    """The samples of a local archive.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no archive, is compressed, damaged or cut off, or a sample has an extension twice.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        _refuse_others(path, os.pread(file.fileno(), _BLOCK, 0), size)
        members = TarMembers()
        try:
            while members.scan(file.fileno()):
                pass
        except (NotPlain, EOFError):
            return _by_tarfile(path, file, size)
        _refuse_cut_off(path, size, members.at)
        if members.ended:
            _warn_of_rest(path, members.at, os.pread(file.fileno(), _TAIL, members.at))
        return grouped(path, *members.found())


async def list_remote(url: str, asker: Asker, size: int) -> TarListing:
    """The samples of an archive that fsspec reads.

    Args:
        url: The archive.
        asker: Reads it.
        size: Its bytes.
    """

    async def read(begin: int, count: int) -> bytes:
        data: bytes = await asker.call("cat_file", url, start=begin, end=min(begin + count, size))
        return data

    members, step = TarMembers(), _STEP
    data, begin = await read(0, _FIRST), 0
    _refuse_others(url, data, size)
    try:
        while members.feed(data, begin) and members.at < size:
            # If the next header is near, the whole archive is read.  If it is far, the bytes up to it are skipped.
            step = _STEP if members.at - begin < 4 * max(len(data), _FIRST) else _FIRST
            begin = members.at
            data = await read(begin, max(step, members.needed))
            if len(data) < min(members.needed, size - begin):
                raise EOFError
            if size - begin < members.needed:
                members.end_of_file(size - begin)
        if not members.ended:
            _refuse_cut_off(url, size, members.at)
            members.end_of_file(0)
    except (NotPlain, EOFError):
        async with asker.one_at_a_time:
            whole = await asker.call("cat_file", url)  # because tarfile cannot await parts of it
            return _by_tarfile(url, io.BytesIO(whole), size)
    rest = data[members.at - begin :] if members.at >= begin else b""
    _warn_of_rest(url, members.at, rest)
    return grouped(url, *members.found())


def _by_tarfile(shard: str, file: Any, size: int) -> TarListing:
    """List an archive by Python's tarfile.

    Args:
        shard: The archive's name.
        file: The open archive.  Its position changes.
        size: Its bytes.
    """
    names, ends = bytearray(), array.array("Q")
    places, sizes = array.array("Q"), array.array("Q")
    sparse: dict[int, Parts] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # otherwise tarfile keeps all of them
                if not member.isreg():
                    continue
                if member.sparse is not None:
                    parts: Any = member.sparse  # typeshed says that it is a number
                    sparse[len(ends)] = [(begin, count) for begin, count in parts if count]
                names += member.name.encode("utf-8", "surrogateescape")
                ends.append(len(names))
                places.append(member.offset_data)
                sizes.append(member.size)
            end = archive.offset
    except (tarfile.TarError, ValueError, IndexError, EOFError) as error:  # tarfile hardly checks sparse members
        if "unexpected end of data" in str(error):
            _refuse_cut_off(shard, size, size + 1)
        raise _damaged(shard, str(error)) from None
    _refuse_cut_off(shard, size, end)
    file.seek(end)
    header = file.read(_BLOCK)
    if header.strip(b"\0"):
        if len(header) < _BLOCK:
            _refuse_cut_off(shard, size, end + _BLOCK)
        raise _damaged(shard, f"there is no header at byte {end:,}")
    if header:
        file.seek(end)
        _warn_of_rest(shard, end, file.read(_TAIL))
    return grouped(shard, bytes(names), ends, places, sizes, sparse)


# ------------------------------------------------------------------------------------------------------ other files


def _refuse_others(shard: str, first: bytes, size: int) -> None:
    for magic, (name, remedy) in _MAGIC.items():
        if first.startswith(magic):
            raise ValueError(
                f"{shard} is a {name} file, so no sample in it can be read without all samples before it. Shards are "
                f"read at random, and must not be compressed. Unpack it ({remedy})"
            )
    if size == 0:
        raise ValueError(
            f"{shard} is empty, and a tar archive has 1,024 bytes or more. Write it again, or leave it out"
        )


def _refuse_cut_off(shard: str, size: int, needed: int) -> None:
    if needed > size:
        raise ValueError(
            f"{shard} is cut off: it has {size:,} bytes, and its last member ends after them. Copy or write it again, "
            "or leave it out"
        )


def _damaged(shard: str, why: str) -> ValueError:
    return ValueError(f"{shard} is no tar archive, or is damaged: {why}. Copy or write it again, or leave it out")


def _warn_of_rest(shard: str, end: int, rest: bytes) -> None:
    """Warn if bytes follow the end of an archive, as in two archives that were joined by `cat`."""
    if rest.strip(b"\0"):
        warnings.warn(
            f"{shard} has more bytes after its end at byte {end:,}. They are not read, as in WebDataset. If two "
            "archives were joined by cat, join them by tar --concatenate, or name each of them",
            RuntimeWarning,
            stacklevel=2,
        )
