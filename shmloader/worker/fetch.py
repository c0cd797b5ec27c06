"""Makes a batch of its indices in a worker: the dataset's samples, collated.  Samples are fetched as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset

Fetch = Callable[[Any], Any]


def fetch_from(dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool) -> Fetch:
    """The function that makes a batch of a task, for one epoch.

    Args:
        dataset: Map-style, or iterable; an iterable one is begun anew.
        auto_collation: Whether a task is the indices of a batch; if not, it is the index of one sample.
        collate_fn: Makes the batch.
        drop_last: Whether the last batch of a stream is dropped if it is not full.

    Returns:
        A function of the task.  It raises StopIteration when a stream has nothing more.
    """
    if isinstance(dataset, IterableDataset):
        return _Stream(dataset, auto_collation, collate_fn, drop_last)
    if not auto_collation:
        return lambda index: collate_fn(dataset[index])

    def fetch(indices: Any) -> Any:
        if at_once := getattr(dataset, "__getitems__", None):
            return collate_fn(at_once(indices))
        return collate_fn([dataset[index] for index in indices])

    return fetch


class _Stream:
    """Batches of an iterable dataset, as they come."""

    def __init__(self, dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool) -> None:
        self._samples = iter(dataset)
        self._auto_collation = auto_collation
        self._collate_fn = collate_fn
        self._drop_last = drop_last
        self._ended = False

    def __call__(self, task: Any) -> Any:
        if self._ended:
            raise StopIteration
        if not self._auto_collation:
            return self._collate_fn(next(self._samples))
        samples = []
        for _ in task:
            try:
                samples.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._drop_last and len(samples) < len(task)):
            raise StopIteration
        return self._collate_fn(samples)
