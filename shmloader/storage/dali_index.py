"""Reads the `.idx` files that DALI's wds2idx writes beside shards: places, sizes and names of members.
Ignores a file that is older than its shard, has no names, or does not agree with the shard's headers.
"""

from __future__ import annotations

import array
import os

from shmloader.core.tar_members import TarMembers
from shmloader.storage.listing import TarListing, grouped

__all__ = ["list_by_dali"]

_BLOCK = 512


def list_by_dali(shard: str) -> TarListing | None:
    """The samples of a local archive, by the `.idx` file beside it.

    The file does not record the archive's size or time, and places that wds2idx got from `tar --block-num` can be those
    of headers.  So the file is used only if it is not older than the archive, if it names its members (version 1.2), if
    each member begins where the one before ends, and if the headers of the first and the last member agree with it.

    Returns:
        The samples; None if there is no such file, or if it is not used.
    """
    base = shard[: shard.find(".", shard.rfind("/") + 1)]
    try:
        path = next(name for name in (f"{base}.idx", f"{os.path.splitext(shard)[0]}.idx") if os.path.exists(name))
        if os.stat(path).st_mtime_ns < os.stat(shard).st_mtime_ns:
            return None
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            if not file.readline().startswith("v1.2 "):
                return None
            members = [part for line in file for part in _parts(line)]
    except (StopIteration, OSError, ValueError):
        return None
    if not members or not _agrees(shard, members):
        return None
    names, ends = bytearray(), array.array("Q")
    for _, _, name in members:
        names += name.encode("utf-8", "surrogateescape")
        ends.append(len(names))
    places = array.array("Q", [place for place, _, _ in members])
    sizes = array.array("Q", [size for _, size, _ in members])
    return grouped(shard, bytes(names), ends, places, sizes)


def _parts(line: str) -> list[tuple[int, int, str]]:
    """Place, size and name of each member of a line: extension, place, size and name, with spaces between.

    Raises:
        ValueError: The line has more words than that, because a name has a space in it.
    """
    words = line.rstrip("\n").split(" ")
    if len(words) % 4:
        raise ValueError
    return [(int(words[at + 1]), int(words[at + 2]), words[at + 3]) for at in range(0, len(words), 4)]


def _agrees(shard: str, members: list[tuple[int, int, str]]) -> bool:
    at = 0
    for place, size, _ in members:
        if place != at + _BLOCK:
            return False
        at = place + -(-size // _BLOCK) * _BLOCK
    with open(shard, "rb", buffering=0) as file:
        if at > os.fstat(file.fileno()).st_size:
            return False
        for place, size, name in (members[0], members[-1]):
            header = TarMembers()
            try:
                header.feed(os.pread(file.fileno(), _BLOCK, place - _BLOCK), 0)
            except ValueError:
                return False
            found = header.found()
            if header.count != 1 or found[0] != name.encode("utf-8", "surrogateescape"):
                return False
            if int.from_bytes(found[3], "little") != size:
                return False
        rest = os.pread(file.fileno(), _BLOCK, at)
        return not rest.strip(b"\0")  # no member was appended since
    return False
