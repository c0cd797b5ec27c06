"""What may replace a bad sample: only what the sampler may give, because the rest may be the validation set."""

from __future__ import annotations

import array
import collections
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import shmloader
from shmloader.trainer.sample_pool import pool_of

LENGTH, PART = 1000, range(100, 200)


class Wrapping(Sampler[Any]):
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        return iter(self.sampler)


class OwnBatches(BatchSampler):
    def __iter__(self) -> Any:
        yield from super().__iter__()


class Listed:
    """The samples of a sampler, as frameworks list them to deal them out to ranks."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.listed = sampler, list(sampler)

    def __len__(self) -> int:
        return len(self.listed)


class Dealt(DistributedSampler[Any]):
    def __iter__(self) -> Any:
        return (self.dataset.listed[at] for at in super().__iter__())  # type: ignore[attr-defined]


class Reversed(RandomSampler):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


class Silent(Sampler[int]):
    """Says nothing of what it gives."""

    def __iter__(self) -> Any:
        return iter(PART)


def numbers(**options: Any) -> list[int]:
    """The samples that may come, smallest first."""
    pool = pool_of(shmloader.DataLoader(range(LENGTH), on_bad_sample="skip", **options))
    return sorted({int(pool[k]) for k in range(len(pool))})


@pytest.mark.parametrize(
    "sampler",
    [
        *(list(PART), tuple(PART), PART, set(PART), frozenset(PART), dict.fromkeys(PART), dict.fromkeys(PART).keys()),
        *(dict(enumerate(PART)).values(), collections.deque(PART), array.array("i", PART)),
        *(numpy.arange(100, 200), torch.arange(100, 200), list(torch.arange(100, 200)), list(numpy.arange(100, 200))),
        *(SubsetRandomSampler(PART), SubsetRandomSampler(torch.arange(100, 200)), Wrapping(SubsetRandomSampler(PART))),
        *(Wrapping(Wrapping(PART)), WeightedRandomSampler([float(i in PART) for i in range(LENGTH)], 9)),
        Dealt(Listed(SubsetRandomSampler(PART)), 2, 0),  # type: ignore[arg-type]
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_part_of_the_dataset(sampler: Any) -> None:
    assert numbers(sampler=sampler) == list(PART)
    assert numbers(batch_sampler=BatchSampler(sampler, 4, False)) == list(PART)
    assert numbers(batch_sampler=OwnBatches(sampler, 4, False)) == list(PART)


@pytest.mark.parametrize("kind", [list, tuple, range, set, numpy.array, torch.tensor], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("size", [25, 30], ids=["of one size", "of two sizes"])
def test_a_list_of_batches(kind: Any, size: int) -> None:
    ranges = [range(at, min(at + size, PART.stop)) for at in range(PART.start, PART.stop, size)]
    assert numbers(batch_sampler=ranges if kind is range else [kind(list(each)) for each in ranges]) == list(PART)


@pytest.mark.parametrize(
    "sampler",
    [
        *(RandomSampler(range(100)), SequentialSampler(range(100)), Reversed(range(100))),
        *(kind(range(100), 2, 0) for kind in (DistributedSampler, shmloader.DistributedSampler)),  # type: ignore
    ],
    ids=lambda given: type(given).__name__,
)
def test_torchs_samplers_over_something_shorter(sampler: Any) -> None:
    assert numbers(sampler=sampler) == list(range(100))


@pytest.mark.parametrize(
    "sampler",
    [None, Silent(), Wrapping(Silent()), RandomSampler(range(LENGTH))],
    ids=lambda given: type(given).__name__,
)
def test_the_pool_is_everything_if_the_sampler_declares_none_or_all(sampler: Any) -> None:
    assert numbers(sampler=sampler) == list(range(LENGTH))


def test_what_wraps_itself() -> None:
    sampler = Wrapping(None)
    sampler.sampler = sampler
    assert numbers(sampler=sampler) == list(range(LENGTH))
