"""Whether a dataset makes all samples of a batch in one call, by its `__getitems__`, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmloader.worker.random_states import Seeded
from shmloader.wrapped_datasets import is_got_one_by_one


def makes_at_once(dataset: Any, indices: Any) -> Callable[[Any], Any] | None:
    """A dataset's `__getitems__`; None if it has none, or if samples must be made one by one.

    If each sample is seeded when its index is read, a Subset of a Subset, or of a StackDataset, would read all indices
    before it makes a sample, and all samples would have the draws of the last seed.
    """
    at_once: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    if at_once and isinstance(indices, Seeded) and is_got_one_by_one(dataset):
        return None
    return at_once
