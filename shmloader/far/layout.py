"""Checks that the leaves of a batch that comes over the wire lie inside its bytes, before these are received."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy
import torch

from shmloader.core.batch_tree import Kept, Tree
from shmloader.far.frames import MOST_KEPT, Garbage

NUMBERS = "biufc"  # kinds of numpy's dtypes whose arrays are leaves; others are pickled


class Layouts:
    """The plans that one far worker has sent, and the layouts that were checked."""

    def __init__(self) -> None:
        self._plans = Kept(MOST_KEPT)  # by number: the pickle, and the leaves' dtypes
        self._checked = Kept(MOST_KEPT)  # (meta, bytes of the batch)

    def check(self, meta: bytes, words: tuple[int, ...], plan: bytes, used: int) -> bytes:
        """Check a batch's description.  Only a new layout is walked through: from batch to batch they repeat.

        Args:
            meta: The description: the plan's number, and for each leaf its offset, its number of dimensions, and these.
            words: The same as numbers.
            plan: The pickled plan; empty if it was sent before.
            used: How many bytes the batch has.

        Returns:
            The pickled plan.

        Raises:
            Garbage: A leaf lies outside, or the plan is not known.
        """
        number = words[0]
        known = (plan, _dtypes(plan)) if plan else self._plans.get(number)
        if known is None:
            raise Garbage(f"a batch with plan {number}, which it has not sent")
        if plan:
            self._checked.drop()
            self._plans.keep(number, known, len(plan))  # as the far end does
        if not self._checked.get((meta, used)):
            _walk(words, known[1], used)
            self._checked.keep((meta, used), True, len(meta))
        return known[0]


def _dtypes(plan: bytes) -> list[Any]:
    """The dtype of each leaf of a pickled plan."""
    try:
        tokens = pickle.loads(plan)
        Tree(tokens)  # as the trainer does, whose error would blame another process
    except Exception as error:
        raise Garbage(f"a plan that cannot be read ({type(error).__name__}: {error!s:.200})") from None
    leaves = [token for token in tokens if isinstance(token, (torch.dtype, numpy.dtype))]
    for token in leaves:
        if isinstance(token, numpy.dtype) and token.kind not in NUMBERS:
            raise Garbage(f"a plan with a leaf of dtype {token}")
    return leaves


def _walk(words: tuple[int, ...], dtypes: list[Any], used: int) -> None:
    at = 1
    for dtype in dtypes:
        if len(words) - at < 2:
            raise Garbage(f"a description of {len(words)} words for {len(dtypes)} leaves")
        offset, sides = words[at], words[at + 1]
        strided, sides = sides < 0, ~sides if sides < 0 else sides
        at += 2
        if sides > (len(words) - at) // (2 if strided else 1):
            raise Garbage(f"a leaf of {sides} dimensions in {len(words)} words")
        shape = words[at : at + sides]
        at += sides
        strides = words[at : at + sides] if strided else ()
        at += len(strides)
        count = reach = math.prod(shape)
        if any(side < 0 for side in shape):
            raise Garbage(f"a leaf of shape {shape}")
        if strided and count:
            reach = _reach(shape, strides)
            if count >= 1 << 63 or not reach or (reach != count and isinstance(dtype, numpy.dtype)):
                raise Garbage(f"a leaf of shape {shape} with strides {strides}")
        if offset < 0 or offset + reach * dtype.itemsize > used:
            raise Garbage(f"a leaf at {offset}, of {reach * dtype.itemsize} bytes, in {used} bytes")
    if at != len(words):
        raise Garbage(f"a description of {len(words)} words, and its leaves take {at}")


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements there are from a leaf's first to its last; 0 if a stride is negative.

    A tensor may be a view: NOTE [ Views ] in layout.pxi.  An array fills its memory.
    """
    steps = [(side - 1) * stride for side, stride in zip(shape, strides, strict=True)]
    return 1 + sum(steps) if min(steps, default=0) >= 0 else 0
