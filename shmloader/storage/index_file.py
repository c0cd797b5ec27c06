"""The index of all shards, in one file that every process maps: its format, its writing and its reading.
Refuses a file that is no index, is cut off or damaged, or was made again while a loader uses the old one.

NOTE [ Index file ]

The file begins with a magic string, and the lengths of the header and the file.  The header is JSON: the kind of the
shards, and where each column lies behind it, at a multiple of 64 bytes.  A column is an array of words, or text; a text
has a second column with the end of each piece.  All processes map the one file, so it is in memory once, and opening it
reads only the header.  A lookup reads words through memoryviews: it makes no array and takes less than a microsecond.

A file is never changed.  It is written under another name and then renamed.  So a process that has mapped the old file
keeps it, and a death leaves no half-written file.  A lock usually lets one process make the file.  Without it, two may
make it at once, which does no harm: each writes a file of its own, with the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import struct
from bisect import bisect_right
from hashlib import blake2b
from typing import Any

import numpy as np

__all__ = ["Columns", "IndexFile", "write"]

_MAGIC = b"shmloader index2"
_HEADER = struct.Struct("<16sQQ")  # magic, bytes of the header, bytes of the file
_ALIGNED = 64
_FORMATS: dict[str, Any] = {"u8": "Q", "u4": "I", "text": "B"}

Columns = dict[str, Any]  # by name: arrays of u8 or u4, and bytes


def write(path: str, kind: str, columns: Columns) -> None:
    """Write an index.

    Args:
        path: The file.  An existing one is replaced.
        kind: The format of the shards.
        columns: Arrays of little-endian words of 4 or 8 bytes, or bytes.

    Raises:
        OSError: It cannot be written.
    """
    blocks, where, at = [], {}, 0
    summed = blake2b(digest_size=16)
    for name, column in columns.items():
        kind_of = "text" if isinstance(column, bytes) else {8: "u8", 4: "u4"}[column.itemsize]
        block = np.frombuffer(column, np.uint8) if kind_of == "text" else np.ascontiguousarray(column)
        summed.update(block.data)
        where[name] = kind_of, at, len(block)
        blocks.append((at, block))
        at += -(-block.nbytes // _ALIGNED) * _ALIGNED
    header = json.dumps({"kind": kind, "columns": where, "sum": summed.hexdigest()}).encode()
    begin = _columns_begin(len(header))
    made = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}-{os.getpid()}-{secrets.token_hex(4)}")
    # Not by tempfile, whose files only their owner may read: users who share the shards share their index.
    try:
        with open(made, "xb") as file:
            file.write(_HEADER.pack(_MAGIC, len(header), begin + at) + header)
            for place, block in blocks:
                file.seek(begin + place)
                file.write(block.data)
            file.truncate(begin + at)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power loss could leave the name without the content
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)
        raise


def _columns_begin(header: int) -> int:
    """Where columns begin behind a header of so many bytes."""
    return -(-(_HEADER.size + header) // _ALIGNED) * _ALIGNED


class IndexFile:
    """An index, mapped.

    Args:
        path: The file.
        sum: The checksum that its columns must have, because another process uses that index; None: any.

    Attributes:
        path: The file.
        kind: The format of the shards.
        sum: The checksum of the columns.  Two files with one checksum have the same content.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no index, was cut off, or does not have the checksum `sum`.
    """

    def __init__(self, path: str, sum: str | None = None) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEADER.size)
            if len(head) < _HEADER.size or not head.startswith(_MAGIC):
                raise ValueError(f"{path} is no index of shards. Delete it, or name another file with index=.")
            _, length, whole = _HEADER.unpack(head)
            if whole != size:
                raise ValueError(
                    f"{path} was cut off: it has {size:,} bytes, and should have {whole:,}. Delete it, and make the "
                    "dataset again"
                )
            header = json.loads(file.read(length))
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.kind: str = header["kind"]
        self.sum: str = header["sum"]
        if sum is not None and self.sum != sum:
            raise ValueError(
                f"{path} was made again from other shards, and a loader still uses the old index. Make the dataset and "
                "the loader again"
            )
        columns = memoryview(self._map)[_columns_begin(length) :]
        self._columns: dict[str, Any] = {}
        for name, (kind, place, count) in header["columns"].items():
            width = {"u8": 8, "u4": 4, "text": 1}[kind]
            self._columns[name] = columns[place : place + width * count].cast(_FORMATS[kind])

    def __getitem__(self, name: str) -> Any:
        """A column: a sequence of integers, or of bytes."""
        return self._columns[name]

    def text(self, name: str, at: int) -> str:
        """A piece of a text.  The column `name`_ends has the ends of the pieces."""
        ends = self._columns[f"{name}_ends"]
        return str(self._columns[name][ends[at - 1] if at else 0 : ends[at]], "utf-8", "surrogateescape")

    def texts(self, name: str) -> list[str]:
        """All pieces of a text."""
        return [self.text(name, at) for at in range(len(self._columns[f"{name}_ends"]))]

    def place(self, name: str, number: int) -> tuple[int, int]:
        """The part in which a number lies, and its place in that part.  The words of the column are the parts' ends."""
        ends = self._columns[name]
        part = bisect_right(ends, number)
        return part, number - (ends[part - 1] if part else 0)
