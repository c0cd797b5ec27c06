"""Decodes the bytes of a member, by its extension, as WebDataset's decode() does.
Decides which extensions decode=True decodes: text, numbers, JSON and NumPy's arrays, but no pickles.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["Decode", "decoder_of"]

Decode = Callable[[Any], Any]


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _array(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _arrays(data: bytes) -> Any:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)


# WebDataset's names.  It also unpickles, which runs whatever code a shard has; give decode={"pkl": pickle.loads}.
_KNOWN: dict[str, Decode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _array,
    "npz": _arrays,
}


def decoder_of(extension: str, decode: bool | Mapping[str, Decode | None]) -> Decode | None:
    """The function that decodes members of an extension; None: they stay bytes.  `.gz` is unpacked first.

    Args:
        extension: The whole extension, such as "seg.png".
        decode: See Shards.
    """
    if decode is False:
        return None
    own: Mapping[str, Decode | None] = {} if decode is True else decode
    inner, _, last = extension.rpartition(".")
    for known in (own, _KNOWN):
        for name in (extension, last):
            if name in known:
                return known[name]
    if last != "gz":
        return None
    inside = decoder_of(inner, decode)
    return gzip.decompress if inside is None else lambda data: inside(gzip.decompress(data))
