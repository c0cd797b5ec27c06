"""Where samples lie in storage, for `group_by`: by a dataset's `__place__`, also through torch's wrappers.
It refuses a place that cannot be compared with others.

A place is any value that is equal for samples that are cheap to read one after the other: the number of a row group, of
a shard, of a chunk of HDF5.  Only the trainer asks for it, when it cuts batches (trainer/windows.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset

from shmloader.protocols.user_objects import attribute

Place = Callable[[Any], Any]


def storage_place(dataset: Any) -> Place | None:
    """The function that returns the place of an index of a dataset; None if the dataset has no `__place__`.

    It looks inside torch's Subset and ConcatDataset, unless a subclass has a `__getitem__` of its own.  A part of a
    ConcatDataset without a `__place__` counts as one place.
    """
    if callable(attribute(dataset, "__place__")):
        return lambda index: dataset.__place__(index)
    if isinstance(dataset, Subset) and _gets_as(Subset, dataset):
        inner = storage_place(dataset.dataset)
        return None if inner is None else lambda index: inner(dataset.indices[index])
    if isinstance(dataset, ConcatDataset) and _gets_as(ConcatDataset, dataset):
        parts = [storage_place(part) for part in dataset.datasets]
        return None if all(part is None for part in parts) else _of_parts(parts, dataset.cumulative_sizes)
    return None


def _gets_as(kind: type[Any], dataset: Any) -> bool:
    return type(dataset).__getitem__ is kind.__getitem__


def _of_parts(parts: list[Place | None], ends: list[int]) -> Place:
    def place(index: Any) -> Hashable:
        at = index + ends[-1] if index < 0 else index
        if not 0 <= at < ends[-1]:
            return None  # getting the sample raises the error
        part = bisect_right(ends, at)
        inner = parts[part]
        return part, None if inner is None else inner(at - (ends[part - 1] if part else 0))

    return place


class Places:
    """Where the samples of a loader lie.

    Args:
        group_by: The option: "place", which asks the dataset, or a function of an index.
        dataset: The loader's.
    """

    def __init__(self, group_by: Any, dataset: Any) -> None:
        by_dataset = isinstance(group_by, str)
        place = storage_place(dataset) if by_dataset else group_by
        assert place is not None  # requirements.py
        self._place: Place = place
        self._source = "__place__ of the dataset" if by_dataset else f"the function group_by={group_by!r}"

    def __call__(self, index: Any) -> Hashable:
        """Where the sample of an index lies.

        Raises:
            RuntimeError: The function raised.
            TypeError: What it returned cannot be compared with other places.
        """
        try:
            place = self._place(index)
        except Exception as error:
            raise RuntimeError(
                f"{self._source} raised {type(error).__name__} for index {index!r}: {error}. "
                "It has to say for each index of the sampler where that sample lies. Correct it, or leave group_by out."
            ) from error
        try:
            hash(place)
            if isinstance(place, torch.Tensor):
                raise TypeError("a tensor is equal only to itself")
        except TypeError as error:
            raise TypeError(
                f"{self._source} returned {place!r} for index {index!r}: {error}. "
                "A place has to be hashable, and equal to the place of each sample that lies there. Return an int, a "
                "string, or a tuple of these."
            ) from None
        return place  # type: ignore[no-any-return]
