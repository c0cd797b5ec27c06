"""Samplers that something of the user's is wrapped around, and datasets that are another one in each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import BOTH, iterate, seed_all
from torch.utils.data import BatchSampler, Dataset, DistributedSampler

import shmloader


class Grouped(BatchSampler):
    """Puts like by like, as torchvision's GroupedBatchSampler."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []


class Drawing(Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return index, torch.randint(10_000, ())


def grouped(kind: Any, ranks: int = 1, rank: int = 0, **options: Any) -> tuple[Any, Any]:
    sampler = shmloader.DistributedSampler(Drawing(), ranks, rank)
    return kind(Drawing(), batch_sampler=Grouped(sampler, 4, True), **options), sampler


def test_other_ranks_cannot_go_on() -> None:
    before, _ = grouped(shmloader.DataLoader, 2)
    next(iter(before))
    state = before.state_dict()
    after, _ = grouped(shmloader.DataLoader, 4)
    with pytest.raises(ValueError, match=r"shared by 2 ranks, and now there are 4\. .* alone or in a BatchSampler"):
        after.load_state_dict(state)


class Noting(DistributedSampler[Any]):
    """Notes the numbers that set_epoch() gets."""

    def __init__(self) -> None:
        super().__init__(Drawing(), 1, 0)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)
        super().set_epoch(epoch)


def test_a_set_epoch_of_ones_own_is_called_when_the_user_calls_it() -> None:
    sampler = Noting()
    loader = shmloader.DataLoader(Drawing(), 4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        iterate(loader)
    assert sampler.epochs == [0, 1, 2]


class Growing(Dataset[int]):
    """Is longer in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 8 + 4 * self.epoch

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_that_is_longer_in_each_epoch() -> None:
    found = []
    for kind in BOTH:
        data = Growing()
        loader = kind(data, 4, num_workers=1, persistent_workers=True)
        found.append([])
        for epoch in range(4):
            data.set_epoch(epoch)
            found[-1].append([batch.tolist() for batch in loader])
    assert found[1] == found[0]


@pytest.mark.parametrize("epoch", [2.0, "3", None])
def test_what_is_no_number_of_an_epoch(epoch: Any) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        shmloader.DataLoader([1]).set_epoch(epoch)
    with pytest.raises(ValueError, match="64 bits"):
        shmloader.DataLoader([1]).set_epoch(1 << 63)


def test_numbers_of_other_libraries() -> None:
    loader = shmloader.DataLoader([1])
    for epoch in (torch.tensor(2), True):
        loader.set_epoch(epoch)
        assert type(loader.state_dict()["epoch"]) is int
        loader.load_state_dict(loader.state_dict())


def test_workers_that_persist_go_back_to_before_their_first_epoch() -> None:
    loader = shmloader.DataLoader(Drawing(), 4, shuffle=True, num_workers=1, persistent_workers=True, sample_seeds=True)
    state = loader.state_dict()
    epochs = []
    for _ in range(2):
        seed_all()
        loader.load_state_dict(state)
        epochs.append([batch.tolist() for pair in loader for batch in pair])
    assert epochs[0] == epochs[1]


def test_an_epochs_end_and_then_another_number() -> None:
    def made() -> Any:
        return shmloader.DataLoader(range(32), 4, shuffle=True, num_workers=1, persistent_workers=True)

    seed_all()
    one = made()
    iterate(one)
    state, generator = one.state_dict(), torch.get_rng_state()
    one.set_epoch(5)
    expected = [batch.tolist() for batch in one]
    torch.set_rng_state(generator)
    other = made()
    other.load_state_dict(state)
    other.set_epoch(5)
    assert [batch.tolist() for batch in other] == expected
