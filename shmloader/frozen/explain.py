"""Lists what of a dataset is frozen, with its bytes, and what is not and why."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from shmloader.core.frozen_rows import FrozenDict, FrozenList
from shmloader.frozen.plan import LEAST, is_frozen, planned, walk
from shmloader.system.sealed_memory import Counter


def explain(dataset: Any) -> str:
    """List what `shmloader.freeze` has frozen in a dataset, and what it has left.

    Args:
        dataset: A dataset, frozen or not.

    Returns:
        A line for each large attribute.

    Example:
        >>> import shmloader
        >>> class Numbers:
        ...     def __init__(self):
        ...         self.labels = list(range(1000))
        >>> print(shmloader.frozen.explain(shmloader.freeze(Numbers())))
        frozen: labels, a list of 1,000, 2,000 bytes
        frozen in all: 2,000 bytes
    """
    lines, total = [], 0
    known = set()
    for name, value, _, _ in walk(dataset, LEAST):
        if is_frozen(value) and id(value) not in known:
            known.add(id(value))
            size = value.pages.size if isinstance(value, (FrozenList, FrozenDict)) else value.nbytes
            total += size
            lines.append(f"frozen: {name}, {_word(value)}, {size:,} bytes")
    for found in planned(dataset, Counter(), LEAST).found:
        if found.why_not is None:
            lines.append(f"not frozen yet: {found.name}, {_word(found.value)}; it would take {found.size:,} bytes")
        else:
            lines.append(f"left as it is: {found.name}, {_word(found.value)}, because of {found.why_not}")
    return "\n".join([*lines, f"frozen in all: {total:,} bytes"])


def _word(value: Any) -> str:
    if isinstance(value, FrozenList | list):
        return f"a list of {len(value):,}"
    if isinstance(value, FrozenDict | dict):
        return f"a dict of {len(value):,}"
    if not isinstance(value, (numpy.ndarray, torch.Tensor)):
        return f"a {type(value).__name__} of {len(value):,}"
    try:
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    except RuntimeError:  # a nested tensor has no such size
        return type(value).__name__
