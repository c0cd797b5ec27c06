"""Whether a dataset makes all samples of a batch in one call, by its `__getitems__`, as torch would have it do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmloader.worker.random_states import Seeded
from shmloader.wrapped_datasets import is_got_one_by_one


def makes_at_once(dataset: Any, indices: Any) -> Callable[[Any], Any] | None:
    """A dataset's `__getitems__`; None where there is none, or where samples are to be made one by one.

    Where each index that is met seeds its sample, a Subset of a Subset, or of a StackDataset, would meet all of them
    before it gets a sample, and all samples would have the last one's draws.
    """
    at_once: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    if at_once and isinstance(indices, Seeded) and is_got_one_by_one(dataset):
        return None
    return at_once
