"""While a loader without workers makes a batch, the user's code asks the same iterator for another one, as in torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset

import shmloader


class Rows(Dataset[Any]):
    """Asks its loader's iterator for a batch while it reads sample `at`."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.iterator: Iterator[Any] | None = None
        self.inner: list[Any] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            self.at = -1
            self.inner += [next(self.iterator)]  # type: ignore[arg-type]
        return index


def without_gaps(kind: Any, **options: Any) -> list[Any]:
    """A collate function that many people write: a batch of which nothing is left is replaced by the next one."""

    def collate(samples: list[int]) -> Any:
        found = [each for each in samples if each not in (2, 3, 4, 5, 8)]
        return found if found else next(batches)

    batches = iter(kind(Rows(), batch_size=2, collate_fn=collate, **options))
    return list(batches)


def from_the_dataset(kind: Any, **options: Any) -> Any:
    dataset = Rows(2)
    dataset.iterator = iter(kind(dataset, batch_size=2, collate_fn=list, **options))
    return list(dataset.iterator), dataset.inner


OPTIONS: list[dict[str, Any]] = [{}, {"device": "cpu"}, {"sample_seeds": True}, {"on_bad_sample": "skip"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("way", [without_gaps, from_the_dataset])
def test_the_inner_call_gets_the_next_batch(way: Any, options: dict[str, Any]) -> None:
    assert way(shmloader.DataLoader, **options) == way(torch.utils.data.DataLoader)


def test_a_state_counts_both() -> None:
    dataset = Rows(2)
    loader = shmloader.DataLoader(dataset, batch_size=2, collate_fn=list)
    dataset.iterator = iter(loader)
    had = [next(dataset.iterator), next(dataset.iterator)]
    assert (had, dataset.inner) == ([[0, 1], [2, 3]], [[4, 5]])
    state, rest = loader.state_dict(), list(dataset.iterator)
    again = shmloader.DataLoader(Rows(), batch_size=2, collate_fn=list)
    again.load_state_dict(state)
    assert (state["batches"], list(again)) == (3, rest)


class Interrupted(Rows):
    """Both calls are interrupted, and the batch of each is made by a later call, the outer one's first."""

    def __getitem__(self, index: int) -> Any:
        if index == 5 and self.inner is not None:
            self.inner = None  # type: ignore[assignment]
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_an_interrupt_of_the_inner_call_loses_neither() -> None:
    dataset = Interrupted(2)
    dataset.iterator = iter(shmloader.DataLoader(dataset, batch_size=2, collate_fn=list))
    assert next(dataset.iterator) == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(dataset.iterator)
    assert list(dataset.iterator) == [[2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_an_error_of_the_inner_call_is_one_batch() -> None:
    def collate(samples: list[int]) -> Any:
        if samples == [4, 5]:
            raise ValueError("this batch")
        return next(batches) if samples == [2, 3] else samples

    batches = iter(shmloader.DataLoader(Rows(), batch_size=2, collate_fn=collate))
    assert next(batches) == [0, 1]
    with pytest.raises(ValueError, match="this batch"):
        next(batches)
    assert list(batches) == [[6, 7], [8, 9], [10, 11]]


class Drawn(Rows):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return index, random.random()


def test_seeds_of_samples_are_those_of_their_places() -> None:
    def numbers(at: int) -> dict[int, float]:
        torch.manual_seed(0)
        dataset = Drawn(at)
        dataset.iterator = iter(shmloader.DataLoader(dataset, 2, collate_fn=list, sample_seeds=True))
        return {index: number for batch in [*dataset.iterator, *dataset.inner] for index, number in batch}

    assert numbers(2) == numbers(-1) and len(numbers(2)) == 12
