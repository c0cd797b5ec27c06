"""A DistributedSampler with other arguments than in the run that saved the state: seed, drop_last, shuffle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_resume import through_json
from test_resume_order import LENGTH, after, flattened, loader, rest_of

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]

SHARED = [shmloader.DistributedSampler, torch.utils.data.DistributedSampler]


@pytest.mark.parametrize("kind", SHARED, ids=["ours", "torch's"])
@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ({}, {"seed": 5}, "had seed=0, and this loader's has seed=5.*Give it seed=0 until the epoch is over"),
        ({"seed": -2}, {"seed": 5}, "had seed=-2, and this loader's has seed=5"),
        ({}, {"drop_last": True}, "had drop_last=False, and this loader's has drop_last=True"),
        (
            {"seed": 5, "drop_last": True},
            {},
            "had seed=5 and drop_last=True, and this loader's has seed=0 and drop_last=False",
        ),
        ({"shuffle": False}, {"shuffle": False, "drop_last": True}, "had drop_last=False, and this loader's has drop_"),
    ],
    ids=str,
)
def test_other_arguments_of_a_distributed_sampler_are_refused_in_mid_epoch(
    kind: Any, was: dict[str, Any], now: dict[str, Any], says: str
) -> None:
    def made(options: dict[str, Any]) -> Any:
        return loader(kind(range(LENGTH), 2, 0, **options))

    got, state = after(made(was), 2)
    with pytest.raises(ValueError, match=f"this state cannot be loaded: its DistributedSampler {says}"):
        made(now).load_state_dict(state)
    assert got + rest_of(made(was), state) == list(kind(range(LENGTH), 2, 0, **was))
    whole = list(kind(range(LENGTH), 2, 0, **now))
    first = made(was)
    states = [through_json(first.state_dict())]  # none of these has a batch
    batches = iter(first)
    states.append(through_json(first.state_dict()))
    list(batches)
    states.append(through_json(first.state_dict()))
    for each in states:
        assert rest_of(made(now), each) == whole


@pytest.mark.parametrize("kind", SHARED, ids=["ours", "torch's"])
def test_a_seed_means_nothing_without_a_shuffle(kind: Any) -> None:
    made = [loader(kind(range(LENGTH), 2, 0, shuffle=False, seed=seed)) for seed in (1, 2)]
    got, state = after(made[0], 2)
    assert got + rest_of(made[1], state) == list(range(0, 47, 2))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_other_ranks_with_the_same_arguments(ranks: int) -> None:
    def made(count: int, rank: int, seed: int) -> Any:
        return loader(shmloader.DistributedSampler(range(48), count, rank, seed=seed), 4)

    parts = [after(made(2, rank, 9), 3) for rank in range(2)]
    left = [index for rank in range(ranks) for index in rest_of(made(ranks, rank, 9), parts[0][1])]
    assert sorted([*parts[0][0], *parts[1][0], *left]) == list(range(48))
    with pytest.raises(ValueError, match="had seed=9, and this loader's has seed=8"):
        made(ranks, 0, 8).load_state_dict(parts[0][1])


@pytest.mark.parametrize("text", ["DistributedSampler of 47 samples", "DistributedSampler without shuffle"])
def test_a_state_of_an_older_version_has_no_arguments(text: str) -> None:
    sampler = shmloader.DistributedSampler(range(LENGTH), 2, 0, "without" not in text, seed=5, drop_last=True)
    got, state = after(loader(sampler), 2)
    assert got + rest_of(loader(sampler), {**state, "sampler": text}) == list(sampler)


class Reseeded(shmloader.DistributedSampler):
    """Has a seed of its own in each epoch, so a load compares none."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.seed = 100 * epoch


def test_the_arguments_of_a_subclass_are_not_compared() -> None:
    first = loader(Reseeded(range(LENGTH), 2, 0))
    first.set_epoch(2)
    whole = list(first.sampler)
    got, state = after(first, 2)
    again = loader(Reseeded(range(LENGTH), 2, 0))
    again.load_state_dict(state)
    again.set_epoch(2)
    assert got + flattened(list(again)) == whole
