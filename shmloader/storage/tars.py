"""Reads samples of tar archives, by an index of their members.
Decides which members of a remote archive one request reads (and how large a gap between them may be), and checks that
the archive has not changed.  A missing member is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, NamedTuple

from shmloader.storage.decoders import Decode, decoder_of
from shmloader.storage.index_file import IndexFile
from shmloader.storage.local_files import changed, gone, short
from shmloader.storage.names import is_remote
from shmloader.storage.remote import OfThisProcess, RemoteFiles, stamp_of

__all__ = ["Column", "Tars"]

Column = tuple[str, tuple[str, ...]]  # its name in a sample, and the names that it may have in a shard

_GAP = 1 << 16  # a gap of this many bytes is read together with the members around it, because a request costs more


class Member(NamedTuple):
    """Where a member of a sample lies."""

    name: str  # its extension
    called: str  # its name in a sample
    place: int
    size: int


class _Reads(NamedTuple):
    """Requests for one sample, under way."""

    runs: list[tuple[int, int, Any]]  # for each request: begin, end, and a future with the bytes
    info: Any  # a future with the shard's info; True: it was compared with the index already

    def cancel(self) -> None:
        for _, _, read in self.runs:
            read.cancel()


class Tars:
    """Members of samples, by their index.

    Args:
        shards: Paths and URLs.
        index: The shards' index.
        local, remote, ahead, decode: See Shards.
    """

    def __init__(
        self,
        shards: Sequence[str],
        index: IndexFile,
        local: OfThisProcess,
        remote: OfThisProcess,
        ahead: OfThisProcess,
        decode: bool | Mapping[str, Decode | None],
    ) -> None:
        self._shards = shards
        self.index = index
        self._local = local
        self._remote = remote
        self._ahead = ahead
        self._decode = decode
        self._members, self._places = index["sample_members"], index["member_place"]
        self._sizes, self._kinds = index["member_size"], index["member_kind"]
        self._names: dict[int, str] = {}  # extensions seen so far, by their numbers
        # For each remote shard that this process reads: a future with its info, or True once it agreed with the index.
        self._looked_at = OfThisProcess(dict)

    def __len__(self) -> int:
        return len(self._members)

    def place(self, index: int) -> int:
        """The number of a sample's shard."""
        return self.index.place("shard_samples", index)[0]

    def get(self, index: int, wanted: Sequence[Column] | None) -> dict[str, Any]:
        """A sample: a dict of its key, its shard's URL, and its members, decoded.

        Raises:
            KeyError: It lacks a wanted member.
            ValueError: A member cannot be decoded.
        """
        sample: dict[str, Any] = {"__key__": self.index.text("key", index), "__url__": self._shards[self.place(index)]}
        members = self._wanted(index, wanted)
        for member, data in zip(members, self._bytes(index, members), strict=True):
            decode = decoder_of(member.name, self._decode) if self._decode else None
            sample[member.called] = data if decode is None else self._decoded(index, member, decode, data)
        return sample

    def values(self, index: int, wanted: Sequence[Column], decoded: Sequence[bool]) -> list[Any]:
        """Members of a sample: as bytes, or decoded as WebDataset does."""
        members = self._wanted(index, wanted)
        found: list[Any] = self._bytes(index, members)
        for at, member in enumerate(members):
            decode = decoder_of(member.name, self._decode or True) if decoded[at] else None
            if decode is not None:
                found[at] = self._decoded(index, member, decode, found[at])
        return found

    def prefetch(self, indices: Iterable[int], wanted: Sequence[Column] | None) -> None:
        """Begin to read samples that will be needed; see ReadAhead."""
        reads, left = [], self._ahead().most
        for index in indices:
            shard = self.place(index)
            url = self._shards[shard]
            try:
                members = self._wanted(index, wanted)
            except KeyError:
                continue  # __getitem__ raises the error
            size = sum(member.size for member in members)
            if is_remote(url):
                reads.append((index, size, partial(self._begin, shard, url, members)))
            elif (left := left - size) >= 0:
                stamp = self.index.text("stamp", shard)
                for begin, end in _runs(members):
                    self._local().advise(url, begin, end - begin, stamp)
        if reads:
            self._ahead().announce(reads)

    # ------------------------------------------------------------------------------------------------ where members lie

    def _all(self, index: int) -> list[Member]:
        members, found = self._members, []
        for at in range(members[index - 1] if index else 0, members[index]):
            kind = self._kinds[at]
            name = self._names.get(kind)
            if name is None:
                name = self.index.text("extension", kind)
                if len(self._names) < 1024:  # a shard may give each member an extension of its own
                    self._names[kind] = name
            found.append(Member(name, name, self._places[at], self._sizes[at]))
        return found

    def _wanted(self, index: int, wanted: Sequence[Column] | None) -> list[Member]:
        members = self._all(index)
        if wanted is None:
            return members
        by_name = {member.name: member for member in members}
        found = []
        for called, names in wanted:
            name = next((name for name in names if name in by_name), None)
            if name is None:
                raise KeyError(
                    f"sample {self.index.text('key', index)!r} of {self._shards[self.place(index)]} has no "
                    f"{' and no '.join(names)}. It has {', '.join(by_name)}. Name one of these, or leave the sample "
                    "out by a Subset"
                )
            found.append(by_name[name]._replace(called=called))
        return found

    # -------------------------------------------------------------------------------------------------------- reading

    def _bytes(self, index: int, members: list[Member]) -> list[Any]:
        shard = self.place(index)
        url = self._shards[shard]
        if is_remote(url):
            return self._from_remote(index, shard, url, members)
        stamp = self.index.text("stamp", shard)
        read = self._local().read
        return [read(url, member.place, member.size, stamp) for member in members]

    def _decoded(self, index: int, member: Member, decode: Decode, data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:
            raise ValueError(
                f"{self.index.text('key', index)}.{member.name} in {self._shards[self.place(index)]} cannot be "
                f"decoded: {type(error).__name__}: {error}. It has {len(data):,} bytes. Give decode= another function "
                f"for {member.name!r}, or None to have its bytes"
            ) from error

    # --------------------------------------------------------------------------------------------------- remote shards

    def _from_remote(self, index: int, shard: int, url: str, members: list[Member]) -> list[Any]:
        reads = self._ahead().take(index)
        if reads is not None:
            try:
                return self._arrived(reads, shard, url, members)
            except (Exception, CancelledError):
                pass  # read it again below, because a failure before the sample was needed is no error yet
        return self._arrived(self._begin(shard, url, members), shard, url, members)

    def _begin(self, shard: int, url: str, members: list[Member]) -> _Reads:
        files: RemoteFiles = self._remote()
        # Each process compares a shard with the index once, while its first samples are under way.
        looked_at = self._looked_at()
        info = looked_at.get(shard)
        if info is None:
            info = looked_at[shard] = files.info(url)
        return _Reads([(begin, end, files.read(url, begin, end)) for begin, end in _runs(members)], info)

    def _look_at(self, shard: int, url: str, info: Any) -> None:
        looked_at = self._looked_at()
        try:
            if stamp_of(info.result()) != self.index.text("stamp", shard):
                raise changed(url)
            looked_at[shard] = True
        except BaseException:
            looked_at.pop(shard, None)  # so that the next sample asks again
            raise

    def _arrived(self, reads: _Reads, shard: int, url: str, members: list[Member]) -> list[Any]:
        """Wait for requests, and cut the members out of their bytes.

        Raises:
            FileNotFoundError, RuntimeError, OSError: See local_files.py.
        """
        try:
            if reads.info is not True:
                self._look_at(shard, url, reads.info)
            runs = []
            for begin, end, read in reads.runs:
                data = read.result()
                if len(data) < end - begin:
                    raise short(url, begin, end - begin, len(data))
                runs.append((begin, end, data))
        except FileNotFoundError as error:
            raise gone(url) from error
        except BaseException:
            reads.cancel()
            raise
        found = []
        for member in members:
            begin, end, data = next((run for run in runs if run[0] <= member.place < run[1]), (0, 0, b""))
            if member.place != begin or member.size != end - begin:
                data = data[member.place - begin : member.place - begin + member.size]
            found.append(data)
        return found


def _runs(members: Sequence[Member]) -> list[tuple[int, int]]:
    """The parts of the archive to read for these members: begin and end of each request."""
    runs: list[tuple[int, int]] = []
    for member in sorted(members, key=lambda member: member.place):
        if not member.size:
            continue
        if runs and member.place - runs[-1][1] <= _GAP:
            runs[-1] = runs[-1][0], max(runs[-1][1], member.place + member.size)
        else:
            runs.append((member.place, member.place + member.size))
    return runs
