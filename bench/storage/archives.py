"""Makes what is read: pictures in a folder a class and in tar archives, and an archive of many small members."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.core import jpegs

__all__ = ["classes", "pack", "pack_sized", "pack_small"]


def classes(source: Path, into: Path, count: int) -> None:
    """Copy pictures to a folder for each of ten classes, again and again until there are so many."""
    files = jpegs.files(source)
    for k in range(count):
        folder = into / str(k % 10)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{k:06}.jpg").write_bytes(Path(files[k % len(files)]).read_bytes())


def pack(folder: Path, into: Path, shards: int) -> None:
    """The pictures of classes, in the order in which ImageFolder has them, as archives of pictures and classes."""
    files = sorted(folder.rglob("*.jpg"))
    for number in range(shards):
        part = files[number * len(files) // shards : (number + 1) * len(files) // shards]
        _write(into / f"train-{number:06}.tar", _members(part))


def _members(files: list[Path]) -> Iterator[tuple[str, bytes]]:
    for file in files:
        yield f"{file.parent.name}/{file.name}", file.read_bytes()
        yield f"{file.parent.name}/{file.stem}.cls", file.parent.name.encode()


def pack_small(path: Path, members: int, size: int) -> None:
    """An archive of `members` members, two for each sample: one of `size` bytes and one of a byte."""
    large = b"x" * size

    def each() -> Iterator[tuple[str, bytes]]:
        for k in range(members // 2):
            yield f"train/{k:08}.jpg", large
            yield f"train/{k:08}.cls", b"1"

    _write(path, each())


def pack_sized(path: Path, pictures: int, size: int) -> None:
    """An archive of files of `size` bytes, named as pictures.  Their bytes are no pictures, because none is decoded."""
    _write(path, ((f"train/{k:08}.jpg", k.to_bytes(4, "little") * (size // 4)) for k in range(pictures)))


def _write(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with open(path, "wb") as file:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.write(member.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512))
        file.write(bytes(1024))
