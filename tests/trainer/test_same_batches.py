"""The same seed gives the same batches as torch's DataLoader, bit for bit, and leaves the same generators behind."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, Fresh, assert_same_outcome, label
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
)

import shmloader


class Bulk(Augmented):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        random.random()
        return [{"bulk": torch.rand(2), **self[index]} for index in indices]


class OneTensor(Augmented):
    """__getitems__ may give anything; it goes to the collate function as it is."""

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.rand(len(indices), 3)


class ByKey(Augmented):
    def __getitem__(self, index: Any) -> Any:
        return repr((type(index).__name__, index)), random.random()


class Odd:
    """A sampler that is no Sampler, has no length and draws while it goes."""

    def __iter__(self) -> Any:
        for k in range(9):
            yield (k + random.randrange(3)) % 9


def scaled(items: list[Any]) -> Any:
    batch = default_collate(items)
    return batch["x"] * random.random(), batch["r"], [item["s"] for item in items]


def stacked_by_hand(items: list[Any]) -> Any:
    return {
        "x": torch.stack([item["x"] for item in items]).transpose(0, 1),
        "noise": numpy.random.rand(4),
        "n": len(items),
    }


def half_stacked(items: list[Any]) -> Any:
    batch = default_collate(items)
    return {"x": batch["x"][:, :2], "first": batch["x"][0], "n": batch["n"], "again": default_collate([[1, 2], [3, 4]])}


def reseed(worker_id: int) -> None:
    random.seed(1000 + worker_id)
    numpy.random.rand(worker_id)
    torch.rand(worker_id + 1)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_three_epochs(workers: int, persistent: bool) -> None:
    if persistent and not workers:
        pytest.skip("persistent workers need workers")
    options = {"batch_size": 4, "shuffle": True, "num_workers": workers, "persistent_workers": persistent}
    epochs = assert_same_outcome(Augmented, epochs=3, **options)
    assert len(epochs[0]) == 6 and not torch.equal(epochs[0][0]["x"], epochs[1][0]["x"])


@pytest.mark.parametrize("start", ["spawn", pytest.param("forkserver", marks=pytest.mark.long)])
def test_start_methods(start: str) -> None:
    assert_same_outcome(
        Augmented,
        epochs=2,
        batch_size=6,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=start,
        collate_fn=half_stacked,
    )


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_prefetch_factor(prefetch: int) -> None:
    assert_same_outcome(Augmented, batch_size=2, num_workers=2, prefetch_factor=prefetch, epochs=2, shuffle=True)


@pytest.mark.parametrize("collate", [scaled, stacked_by_hand, half_stacked, list, tuple])
def test_collate_functions(collate: Any) -> None:
    assert_same_outcome(Augmented, batch_size=4, num_workers=2, collate_fn=collate, epochs=2)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 5, "drop_last": False},
        {"batch_size": 100},
        {"batch_size": None},
        {"batch_size": None, "shuffle": True},
        {"batch_size": None, "sampler": [[0, 1], [2], []]},
        {"sampler": Fresh(Odd), "batch_size": 2},
        {"sampler": [3, 1, 2], "batch_size": 2},
        {"batch_sampler": [[0, 1, 2], (3, 4), [5]]},
        {"batch_sampler": Fresh(lambda: BatchSampler(RandomSampler(range(9)), 2, True))},
        {"batch_sampler": Fresh(lambda: BatchSampler(SequentialSampler(range(9)), 4, False))},
        {"sampler": Fresh(lambda: RandomSampler(range(9), replacement=True, num_samples=13)), "batch_size": 3},
        {"sampler": Fresh(lambda: WeightedRandomSampler([0.1, 0.9, 0.3], 12)), "batch_size": 3},
        {"batch_size": 3, "shuffle": True, "generator_seed": 5},
        {"batch_size": 3, "shuffle": True, "worker_init_fn": reseed},
        {"batch_size": 3, "timeout": 30},
    ],
    ids=label,
)
def test_samplers_and_options(options: dict[str, Any]) -> None:
    dataset = ByKey if options.get("batch_size", 1) is None else Augmented
    assert_same_outcome(dataset, num_workers=2, epochs=2, **options)


@pytest.mark.parametrize(
    "keys",
    [
        [[numpy.int64(3), 2], [True, 2**70], [-1, -(2**63)]],
        [["a", "b"], [("x", 1)], [None, slice(2)], [frozenset((1,))], [numpy.float32(2.5), 2.5]],
    ],
    ids=["ints", "other keys"],
)
def test_keys_of_every_type_reach_the_dataset(keys: Any) -> None:
    assert_same_outcome(ByKey, batch_sampler=keys, num_workers=2)
    assert_same_outcome(ByKey, batch_size=None, sampler=[key for batch in keys for key in batch], num_workers=2)


def test_keys_that_are_tensors() -> None:
    assert_same_outcome(ByKey, batch_sampler=Fresh(lambda: [[torch.tensor(3)], [torch.arange(2)]]), num_workers=1)


def test_many_indices_in_a_batch() -> None:
    class Length(Augmented):
        def __getitems__(self, indices: list[int]) -> Any:
            return [torch.tensor([len(indices), sum(indices)])]

    assert_same_outcome(
        Length, batch_sampler=[[1], list(range(100_000)), [str(k) for k in range(3)] and [1, 2]], num_workers=1
    )


@pytest.mark.parametrize("dataset", [Bulk, OneTensor])
def test_getitems(dataset: Any) -> None:
    assert_same_outcome(dataset, batch_size=4, num_workers=2, epochs=2)


def test_subset_and_empty() -> None:
    assert_same_outcome(lambda: Subset(Augmented(), [5, 3, 8]), batch_size=2, num_workers=2)
    assert_same_outcome(lambda: Augmented(0), batch_size=2, num_workers=2)


def test_an_epoch_left_half_way() -> None:
    def two_epochs(kind: type) -> Any:
        torch.manual_seed(3)
        loader = kind(Augmented(), batch_size=2, num_workers=2, shuffle=True, persistent_workers=True)
        first = [batch for _, batch in zip(range(3), loader, strict=False)]
        return first, list(loader), list(loader)

    from conftest import BOTH, assert_same

    theirs, ours = (two_epochs(kind) for kind in BOTH)
    assert_same(ours, theirs)


def test_more_workers_than_batches() -> None:
    assert_same_outcome(Augmented, batch_size=12, num_workers=5, epochs=2)


def test_two_iterators_of_one_loader() -> None:
    def pairs(kind: type) -> Any:
        torch.manual_seed(3)
        loader = kind(Augmented(), batch_size=4, num_workers=1, shuffle=True)
        return list(zip(loader, loader, strict=True))

    from conftest import BOTH, assert_same

    theirs, ours = (pairs(kind) for kind in BOTH)
    assert_same(ours, theirs)


@pytest.mark.forked
def test_a_new_entry_in_the_collate_map_wins() -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    stock = default_collate_fn_map[torch.Tensor]
    try:
        default_collate_fn_map[torch.Tensor] = lambda batch, *, collate_fn_map=None: torch.cat(batch)
        assert assert_same_outcome(Augmented, batch_size=4, num_workers=2)[0][0]["x"].shape == (12, 2)
    finally:
        default_collate_fn_map[torch.Tensor] = stock


@pytest.mark.long
def test_under_the_profiler() -> None:
    loader = shmloader.DataLoader(Augmented(), batch_size=4, num_workers=2)
    with torch.profiler.profile() as profile:
        assert len(list(loader)) == 6
    assert any("enumerate(DataLoader)#" in event.key for event in profile.key_averages())
