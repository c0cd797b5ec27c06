"""shmloader.DistributedSampler: torch's shares, and an epoch that goes on with any number of ranks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch.utils.data
from conftest import Augmented, assert_same, seed_all

import shmloader

RANKS = (1, 2, 3, 4)


def shares(kind: Any, ranks: int, length: int, epoch: int = 0, after: int | None = None, **options: Any) -> list[Any]:
    """What each rank gets: of a whole epoch, or of what is left of it."""
    given = []
    for rank in range(ranks):
        sampler = kind(range(length), ranks, rank, **options)
        sampler.set_epoch(epoch)
        given.append(list(sampler if after is None else sampler.after(after)))
    return given


def together(given: list[list[int]]) -> list[int]:
    """The samples of all ranks, in the order in which they are dealt out."""
    return [sample for one_each in zip(*given, strict=True) for sample in one_each]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("length", [1, 3, 12, 53])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_shares_are_torchs(ranks: int, length: int, shuffle: bool, drop_last: bool) -> None:
    options = {"shuffle": shuffle, "drop_last": drop_last, "seed": 5}
    for epoch in range(2):
        theirs = shares(torch.utils.data.DistributedSampler, ranks, length, epoch, **options)
        assert shares(shmloader.DistributedSampler, ranks, length, epoch, **options) == theirs
        for rounds in range(len(theirs[0]) + 1):
            rest = shares(shmloader.DistributedSampler, ranks, length, epoch, rounds * ranks, **options)
            assert rest == [share[rounds:] for share in theirs]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("before", "now"), [*itertools.product(RANKS, RANKS)])
def test_other_ranks_go_on(before: int, now: int, drop_last: bool) -> None:
    length, options = 53, {"drop_last": drop_last}
    started = shares(shmloader.DistributedSampler, before, length, 3, **options)
    order = shares(shmloader.DistributedSampler, 1, length, 3)[0]
    for rounds in range(len(started[0]) + 1):
        had = together([share[:rounds] for share in started])
        assert had == (order + order)[: len(had)]
        rest = together(shares(shmloader.DistributedSampler, now, length, 3, len(had), **options))
        left = order[len(had) :]
        if drop_last:
            assert rest == left[: len(left) // now * now]
        else:
            filled = -len(left) % now
            assert rest == left + order[:filled]


def test_nothing_is_left() -> None:
    for samples in (4, 5, 6, 100):
        assert shares(shmloader.DistributedSampler, 2, 4, after=samples) == [[], []]
    assert shares(shmloader.DistributedSampler, 2, 0, after=0) == [[], []]


# ------------------------------------------------------------------------------------------------------- with a loader


def loaders(ranks: int, batch_size: int, length: int = 48) -> list[Any]:
    """One loader a rank, seeded alike, as ranks that resume from one state are."""
    made = []
    for rank in range(ranks):
        sampler = shmloader.DistributedSampler(range(length), ranks, rank, seed=3)
        sampler.set_epoch(1)
        made.append(shmloader.DataLoader(Augmented(length), batch_size, sampler=sampler, sample_seeds=True))
    return made


def steps(iterators: list[Any], count: int | None = None) -> list[Any]:
    """The batches of all ranks together, a step each: the samples in the order in which they were dealt out."""
    given = []
    for batches in itertools.islice(zip(*iterators, strict=True), count):
        samples = [
            {key: batch[key][k] for key in ("x", "r", "n", "i")}
            for k in range(len(batches[0]["i"]))
            for batch in batches
        ]
        given.append(samples)
    return given


@pytest.mark.parametrize(("before", "now"), [*itertools.product(RANKS, RANKS)])
def test_the_same_global_batches_to_the_bit(before: int, now: int) -> None:
    """12 samples a step, for any number of ranks: augmented alike too, because each is seeded by its place."""
    seed_all()
    first = loaders(before, 12 // before)
    seeds = torch.get_rng_state()
    states = []
    iterators = []
    for one in first:
        torch.set_rng_state(seeds)
        iterators.append(iter(one))
    steps(iterators, 1)
    states = [one.state_dict() for one in first]
    assert all(state == states[0] for state in states) and len(json.dumps(states[0])) < 1000
    rest = steps(iterators)
    seed_all(9)
    second = loaders(now, 12 // now)
    for one in second:
        one.load_state_dict(states[0])
    assert_same(steps([iter(one) for one in second]), rest)
    assert len(rest) == 3


def test_ranks_do_not_augment_alike() -> None:
    drawn = []
    for one in loaders(2, 4):
        seed_all()
        drawn += [value for batch in one for value in batch["r"].tolist()]
    assert len(set(drawn)) == len(drawn) == 48


def test_torchs_sampler_goes_on_with_as_many_ranks() -> None:
    def made(kind: Any, ranks: int) -> Any:
        return shmloader.DataLoader(Augmented(48), 4, sampler=kind(range(48), ranks, 0), sample_seeds=True)

    torchs = torch.utils.data.DistributedSampler
    seed_all()
    first = made(torchs, 2)
    batches = iter(first)
    next(batches)
    state, rest = first.state_dict(), list(batches)
    for kind in (torchs, shmloader.DistributedSampler):
        again = made(kind, 2)
        again.load_state_dict(state)
        assert_same(list(again), rest)
    with pytest.raises(ValueError, match=r"shared by 2 ranks, and now there are 3. Use as many ranks"):
        made(torchs, 3).load_state_dict(state)
    made(shmloader.DistributedSampler, 3).load_state_dict(state)
