"""The same seed gives the same batches as torch's DataLoader, bit for bit, and leaves the same generators behind."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, Augmented, assert_same_outcome
from torch.utils.data import (
    default_collate,
)


class ByKey(Augmented):
    def __getitem__(self, index: Any) -> Any:
        return repr((type(index).__name__, index)), random.random()


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


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, True), (2, False), (4, True)])
def test_three_epochs(workers: int, persistent: bool) -> None:
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


@pytest.mark.parametrize("collate", [scaled, stacked_by_hand, half_stacked, list, tuple])
def test_collate_functions(collate: Any) -> None:
    assert_same_outcome(Augmented, batch_size=4, num_workers=2, collate_fn=collate, epochs=2)


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


def test_many_indices_in_a_batch() -> None:
    class Length(Augmented):
        def __getitems__(self, indices: list[int]) -> Any:
            return [torch.tensor([len(indices), sum(indices)])]

    assert_same_outcome(
        Length, batch_sampler=[[1], list(range(100_000)), [str(k) for k in range(3)] and [1, 2]], num_workers=1
    )


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5])
def test_an_epoch_that_was_begun_and_left(batches: int, persistent: bool) -> None:
    """In iter(), a RandomSampler over the loader's generator draws once more at its end, if torch comes so far."""
    drawn = []
    for kind in BOTH:
        generator = torch.Generator().manual_seed(3)
        loader = kind(
            range(4 * batches), 4, shuffle=True, generator=generator, num_workers=2, persistent_workers=persistent
        )
        begun = [iter(loader)]
        drawn.append([batch.tolist() for batch in iter(loader)])
        begun.clear()
    assert drawn[0] == drawn[1]
