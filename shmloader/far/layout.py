"""Checks that the leaves of a batch that comes over the wire lie inside its bytes, before these are received."""

from __future__ import annotations

import math
import pickle

import numpy
import torch

from shmloader.core.batch_tree import Assembly
from shmloader.far.frames import MOST_PLANS, Garbage

NUMBERS = "biufc"  # kinds of numpy's dtypes whose arrays are leaves; others are pickled


class Layouts:
    """The plans that one far worker has sent, and the layouts that were checked."""

    def __init__(self) -> None:
        self._plans: dict[int, tuple[bytes, list[int]]] = {}  # by number: the pickle, and the leaves' item sizes
        self._checked: set[tuple[bytes, int]] = set()

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
        if plan:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[number] = plan, _sizes(plan)
            self._checked.clear()
        if number not in self._plans:
            raise Garbage(f"a batch with plan {number}, which it has not sent")
        known, sizes = self._plans[number]
        if (meta, used) not in self._checked:
            _walk(words, sizes, used)
            if len(self._checked) >= MOST_PLANS:
                self._checked.clear()
            self._checked.add((meta, used))
        return known


def _sizes(plan: bytes) -> list[int]:
    """The bytes of an element of each leaf of a pickled plan."""
    try:
        tokens = pickle.loads(plan)
        Assembly(tokens).whole()  # as the trainer does, whose error would blame another process
    except Exception as error:
        raise Garbage(f"a plan that cannot be read ({type(error).__name__}: {error!s:.200})") from None
    leaves = [token for token in tokens if isinstance(token, (torch.dtype, numpy.dtype))]
    for token in leaves:
        if isinstance(token, numpy.dtype) and token.kind not in NUMBERS:
            raise Garbage(f"a plan with a leaf of dtype {token}")
    return [token.itemsize for token in leaves]


def _walk(words: tuple[int, ...], sizes: list[int], used: int) -> None:
    at = 1
    for size in sizes:
        if len(words) - at < 2:
            raise Garbage(f"a description of {len(words)} words for {len(sizes)} leaves")
        offset, sides = words[at], words[at + 1]
        strided, sides = sides < 0, ~sides if sides < 0 else sides
        at += 2
        if sides > (len(words) - at) // (2 if strided else 1):
            raise Garbage(f"a leaf of {sides} dimensions in {len(words)} words")
        shape = words[at : at + sides]
        at += sides
        strides = words[at : at + sides] if strided else ()
        at += len(strides)
        count = math.prod(shape)
        if any(side < 0 for side in shape) or offset < 0 or offset + count * size > used:
            raise Garbage(f"a leaf at {offset}, of {count * size} bytes, in {used} bytes")
        if strided and count and not _fill(shape, strides, count):
            raise Garbage(f"a leaf of shape {shape} with strides {strides}")
    if at != len(words):
        raise Garbage(f"a description of {len(words)} words, and its leaves take {at}")


def _fill(shape: tuple[int, ...], strides: tuple[int, ...], count: int) -> bool:
    """Whether the elements of a leaf lie in its memory without gaps, as a writer places them."""
    steps = [(side - 1) * stride for side, stride in zip(shape, strides, strict=True)]
    return all(step >= 0 for step in steps) and sum(steps) == count - 1
