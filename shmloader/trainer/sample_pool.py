"""The samples that may replace bad ones: those that the sampler may give.  See NOTE [ Bad samples ].

A sampler may leave samples out, such as those of the validation set.  They must not enter the training as replacements.
"""

from __future__ import annotations

import array
import collections
import contextlib
from collections.abc import Iterable, KeysView, Sequence, ValuesView
from typing import Any

import numpy
import torch
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from shmloader.options import UnsuitableOption
from shmloader.protocols.user_objects import attribute
from shmloader.resume.distributed import DistributedSampler as Ours
from shmloader.resume.samplers import iterates_as, sampler_of

_COUNTING = (RandomSampler, SequentialSampler, DistributedSampler, Ours)  # give all numbers below a length
_COLLECTIONS = (
    *(list, tuple, range, set, frozenset, dict, KeysView, ValuesView),
    *(collections.deque, array.array, numpy.ndarray, torch.Tensor),
)
_WITHIN = ("sampler", "batch_sampler", "_sampler")  # attributes in which samplers, and lists of samples, keep a sampler


def pool_of(loader: Any) -> Sequence[int]:
    """The indices that may replace a bad sample, as an array or a range: those that the sampler may give.

    If a sampler of the user's does not list its indices, these are all indices of the dataset.

    Raises:
        UnsuitableOption: The sampler does not list its indices, and the dataset has no length.
    """
    met: list[Any] = []
    part = sampler_of(loader)
    while part is not None and not any(part is other for other in met):
        met.append(part)
        found: Sequence[int] | None = _own_indices(part)
        if found is not None:
            return found
        part = _within(part)
    try:
        return range(len(loader.dataset))
    except TypeError:
        raise UnsuitableOption(
            "on_bad_sample='skip' cannot choose a replacement for a bad sample, because "
            f"{type(loader.dataset).__name__} has no __len__ and {type(met[-1]).__name__} no indices. Give one of "
            "them.",
            "on_bad_sample",
        ) from None


def _own_indices(sampler: Any) -> Any:
    """The indices that a sampler gives by itself; None if it does not list them, or only passes on another's."""
    if isinstance(sampler, WeightedRandomSampler):
        return sampler.weights.nonzero().flatten().numpy()
    if isinstance(sampler, _COLLECTIONS):
        return _indices(sampler)
    found, source = _indices(attribute(sampler, "indices")), _source(sampler)
    if found is not None or source is None or (not iterates_as(sampler, *_COUNTING) and _within(sampler) is not None):
        return found
    return range(len(source))


def _source(sampler: Any) -> Any:
    """The object whose length one of torch's samplers uses: the dataset, or something shorter."""
    if isinstance(sampler, (RandomSampler, SequentialSampler)):
        return sampler.data_source
    return sampler.dataset if isinstance(sampler, DistributedSampler) else None


def _within(sampler: Any) -> Any:
    """The sampler inside a sampler, or inside the object whose length the sampler uses, as Lightning wraps them."""
    for holder in (sampler, _source(sampler)):
        for name in _WITHIN:
            if (found := attribute(holder, name)) is not None:
                return found
    return None


def _indices(given: Any) -> Any:
    """These indices, or the indices of these batches, as an array or a range; None if they are something else."""
    if isinstance(given, range):
        return given or None
    if callable(given) or not isinstance(given, Iterable):
        return None
    if not isinstance(given, (numpy.ndarray, torch.Tensor)):
        given = list(given)
    for listed in (lambda: given, lambda: [index for batch in given for index in batch]):  # batches may differ in size
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            found = numpy.asarray(listed())
            if found.size and found.dtype.kind in "iu":
                return found.ravel()
    return None
