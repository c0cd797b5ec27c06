"""How many batches a loader may have under way: as many as torch, but not more than the epoch has, and one.

A ring has an entry and a slot for each.  With `prefetch_factor=100_000` and an epoch of a hundred batches, almost all
of them would be made for nothing.  The one more has the loader ask for an index behind the last one in iter(), if torch
would: a RandomSampler draws from the loader's generator there, which decides the next order.

The length is only a bound.  If a sampler's `len()` is too small, or a later epoch of persistent workers is longer,
fewer batches are under way than could be, and none is lost.
"""

from __future__ import annotations

import operator
from typing import Any

from torch.utils.data import IterableDataset

from shmloader.protocols.attributes import length_of

MANY = 1024  # batches under way; for so many, it is worth asking code that may do more than count


def most_under_way(loader: Any) -> int:
    """How many batches of a loader may be under way, at least one for each worker."""
    usual = operator.index(loader.num_workers * loader.prefetch_factor)  # torch takes no float
    batches = _batches_of(loader, asks=usual > MANY)
    return usual if batches is None else min(usual, max(batches + 1, int(loader.num_workers)))


def _batches_of(loader: Any, asks: bool) -> int | None:
    """How many batches an epoch has; None if that is not known.

    torch calls no `len()` when an epoch begins, and a user's sampler may draw random numbers in it.  So that is called
    only if `asks` is true.
    """
    if isinstance(loader.dataset, IterableDataset):
        samples = length_of(loader.dataset) if asks else None
        # each worker's last batch may be smaller
        return None if samples is None else -(-samples // (loader.batch_size or 1)) + loader.num_workers
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return length_of(sampler) if asks or _only_counts(sampler) else None


def _only_counts(sampler: Any) -> bool:
    """Whether `len()` of a sampler, and of the one inside it, is torch's own or a builtin's, which only counts."""
    if not any("__len__" in vars(kind) for kind in type(sampler).__mro__):
        return False
    where = next(kind for kind in type(sampler).__mro__ if "__len__" in vars(kind)).__module__
    if where == "builtins":
        return True
    if not where.startswith(("torch.utils.data.", "shmloader.")):
        return False
    inner = vars(sampler).get("sampler")
    return inner is None or _only_counts(inner)
