"""Expands the `urls` that a user gives to a list of shards: braces, patterns, lists in a file.
Decides the format of shards by their names, and refuses compressed ones, several formats, folders and `pipe:`.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from shmloader.storage import remote

__all__ = ["ARROW", "PARQUET", "TAR", "format_of", "is_remote", "local_path", "shards_of"]

TAR, PARQUET, ARROW = "tar", "parquet", "arrow"
_FORMATS = {".tar": TAR, ".parquet": PARQUET, ".pq": PARQUET, ".arrow": ARROW, ".feather": ARROW, ".ipc": ARROW}
_COMPRESSED = re.compile(r"\.(tgz|tbz2?|txz|tzst|tar\.(gz|bz2|xz|zst|zstd|lz4|z))$", re.IGNORECASE)
_RANGE = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?$")
_LOCAL = re.compile(r"^(file://|local://|file:)")
_REMOTE = re.compile(r"^(?!file:|local:)[a-zA-Z][a-zA-Z0-9+.-]*(://|::)")


def shards_of(urls: Any, options: dict[str, Any]) -> list[str]:
    """The shards that a user names, in their order.

    Args:
        urls: One path or URL, or several.  They may have braces ({000..127}) or a pattern (*, ?, []).  It may also be a
            JSON file in which `wids` lists shards.
        options: For fsspec.

    Returns:
        The paths (absolute) and URLs.

    Raises:
        ValueError: No shard is named, or one of the names is no shard.
        FileNotFoundError: A pattern matches nothing.
    """
    several = [urls] if isinstance(urls, (str, os.PathLike)) else list(urls)
    found: list[str] = []
    for given in several:
        for one in _braces(os.fspath(given)):
            found += _listed(one, options) if one.endswith(".json") else _matched(one, options)
    if not found:
        raise ValueError(f"urls={urls!r} names no shard. Name at least one, such as train-{{000..127}}.tar")
    return found


def format_of(shards: list[str]) -> str:
    """The format of the shards, by their names.

    Raises:
        ValueError: Some are compressed, or of another format than the first.
    """
    first = _format(shards[0])
    for shard in shards:
        if _format(shard) != first:
            raise ValueError(
                f"{shard} is a {_format(shard)} file, and {shards[0]} a {first} file. A dataset has shards of one "
                "format. Make one dataset for each, and join them by torch's ConcatDataset"
            )
    return first


def is_remote(shard: str) -> bool:
    """Whether fsspec reads it."""
    return bool(_REMOTE.match(shard))


def local_path(url: str) -> str:
    """The absolute path of a local shard; also of a URL with file:// or file:."""
    return os.path.abspath(os.path.expanduser(_LOCAL.sub("", url)))


def _format(shard: str) -> str:
    name = re.sub(r"[?#].*$", "", shard) if is_remote(shard) else shard
    if _COMPRESSED.search(name):
        raise ValueError(
            f"{shard} is compressed, so no sample in it can be read without all samples before it. Shards are read at "
            "random, and must not be compressed. Unpack it (gunzip); pictures are compressed already"
        )
    return _FORMATS.get(os.path.splitext(name)[1].lower(), TAR)


def _braces(text: str) -> Iterator[str]:
    """Expands braces, such as {000..127} and {train,val}, as the shell and WebDataset do."""
    begin = text.find("{")
    if begin < 0:
        yield text
        return
    parts, end = _alternatives(text, begin)
    numbers = _RANGE.match(parts[0]) if len(parts) == 1 else None
    if len(parts) == 1 and numbers is None:
        raise ValueError(f"{text!r} has braces that are no range and no list. Write {{000..127}} or {{train,val}}")
    inside = _range(*numbers.groups()) if numbers else (one for part in parts for one in _braces(part))
    for middle in inside:
        for rest in _braces(text[end:]):
            yield f"{text[:begin]}{middle}{rest}"


def _alternatives(text: str, begin: int) -> tuple[list[str], int]:
    """The alternatives in a brace, and the position after the brace."""
    depth, at, parts = 0, begin + 1, []
    for end in range(begin, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0 or (depth == 1 and text[end] == ","):
            parts.append(text[at:end])
            at = end + 1
        if depth == 0:
            return parts, at
    raise ValueError(f"{text!r} has a brace that is not closed. Close it, as in {{000..127}}")


def _range(first: str, last: str, step: str | None = None) -> Iterator[str]:
    begin, end = int(first), int(last)
    by = abs(int(step or 1)) or 1
    width = max(len(first), len(last)) if any(re.match(r"^-?0\d", end) for end in (first, last)) else 0
    for number in range(begin, end + 1, by) if begin <= end else range(begin, end - 1, -by):
        yield f"{number:0{width}d}"


def _matched(one: str, options: dict[str, Any]) -> list[str]:
    if one.startswith("pipe:"):
        raise ValueError(
            f"{one!r} is a command, and its output can only be read in order. Shards are read at random. Give the URL "
            "itself, such as s3://bucket/train-000000.tar"
        )
    is_pattern = any(wildcard in one for wildcard in "*?[")
    if is_remote(one):
        if not is_pattern or one.startswith(("http://", "https://")):  # in these, ? begins a query
            return [one]
        found = remote.matching(one, options)
    else:
        path = local_path(one)
        if os.path.isdir(path):
            raise ValueError(f"{one!r} is a folder. Name the shards in it, such as {os.path.join(one, '*.tar')}")
        found = sorted(glob.glob(path, recursive=True)) if is_pattern else [path]
    if not found:
        raise FileNotFoundError(f"{one!r} matches no file. Correct the pattern, or wait until the shards are there")
    return found


def _listed(path: str, options: dict[str, Any]) -> list[str]:
    """The shards that a JSON file of `wids` lists."""
    if is_remote(path):
        text = remote.read_whole(path, options)
    else:
        with open(local_path(path), "rb") as file:
            text = file.read()
    try:
        listed = [one["url"] for one in json.loads(text)["shardlist"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no list of shards: {type(error).__name__}: {error}. A list is what `widsindex create` writes, "
            'with "shardlist" in it'
        ) from None
    urls = [url if is_remote(url) else os.path.join(os.path.dirname(path), url) for url in listed]
    return [url if is_remote(url) else local_path(url) for url in urls]
