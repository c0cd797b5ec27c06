"""Tar archives for the tests, and what WebDataset makes of one, by its own rules and Python's tarfile."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable
from typing import Any

Members = Iterable[tuple[str, bytes]]


def write(path: Any, members: Members, format: int = tarfile.USTAR_FORMAT, **header: Any) -> str:
    """Write an archive; a name that ends with / is a folder."""
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.size = len(data)
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
            for key, value in header.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(data))
    return os.fspath(path)


def samples_of(path: Any) -> list[dict[str, Any]]:
    """The samples of an archive: the rules of WebDataset's tar_file_iterator and group_by_keys, over tarfile."""
    samples: list[dict[str, Any]] = []
    with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            if not member.isreg() or re.match(r"__[^/]*__($|/)", member.name):
                continue
            data = archive.extractfile(member).read()
            found = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", member.name)
            if found is None:
                continue
            key, extension = found[1], found[2].lower()
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key, "__url__": os.fspath(path)})
            assert extension not in samples[-1]
            samples[-1][extension] = data
    return samples


def samples_in(folder: Any) -> list[dict[str, Any]]:
    """The samples of all archives of a folder, in the order of their names."""
    return [sample for path in sorted(folder.glob("*.tar")) for sample in samples_of(path)]


def photographs(count: int) -> Members:
    """Members of small samples: a picture's bytes, a class, a text."""
    for k in range(count):
        yield f"{k:06}.jpg", bytes([k % 256]) * (100 + k)
        yield f"{k:06}.cls", str(k % 10).encode()
        yield f"{k:06}.txt", f"picture {k}".encode()


def members_of_three(folder: Any) -> str:
    """Write three archives of 20 samples each; returns their names with braces."""
    members = [*photographs(60)]
    for k in range(3):
        write(folder / f"train-{k:03}.tar", members[60 * k : 60 * (k + 1)])
    return os.fspath(folder / "train-{000..002}.tar")
