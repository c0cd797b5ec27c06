"""The datasets inside torch's own wrappers: Subset, ConcatDataset, ChainDataset, StackDataset.
It decides which of them get set_epoch(), and whether a wrapper's `__getitems__` only makes one sample after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset

from shmloader.protocols.attributes import attribute


def hearers(dataset: Any) -> list[Any]:
    """The datasets with a set_epoch(): this one, or those inside torch's wrappers, each once.

    The wrappers do not pass set_epoch() on, and only a worker can reach the datasets in its own copy.
    """
    if callable(attribute(dataset, "set_epoch")):
        return [dataset]
    found: dict[int, Any] = {}  # a ConcatDataset may have one dataset many times
    for part in _parts(dataset):
        found |= {id(hearer): hearer for hearer in hearers(part)}
    return list(found.values())


def with_parts(dataset: Any) -> Iterator[Any]:
    """A dataset, and all datasets inside torch's wrappers, at any depth."""
    yield dataset
    for part in _parts(dataset):
        yield from with_parts(part)


def is_got_one_by_one(dataset: Any) -> bool:
    """Whether a dataset's `__getitems__` only calls `__getitem__` for one sample after the other.

    For Subset and StackDataset that is so if it is so for all datasets inside them.
    """
    if getattr(dataset, "__getitems__", None) is None:
        return True
    own = next((kind for kind in (Subset, StackDataset) if isinstance(dataset, kind)), None)
    if own is None or any(
        getattr(type(dataset), name) is not getattr(own, name) for name in ("__getitem__", "__getitems__")
    ):
        return False
    return all(map(is_got_one_by_one, _parts(dataset)))


def asked_for_batches(dataset: Any) -> Iterator[Any]:
    """A dataset, and the datasets inside torch's wrappers that pass `__getitems__` on to them."""
    yield dataset
    if isinstance(dataset, (Subset, StackDataset)):
        for part in _parts(dataset):
            yield from asked_for_batches(part)


def _parts(dataset: Any) -> list[Any]:
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    if isinstance(dataset, (ConcatDataset, ChainDataset)):
        return list(dataset.datasets)
    if isinstance(dataset, StackDataset):
        found = dataset.datasets
        return list(found.values() if isinstance(found, dict) else found)
    return []
