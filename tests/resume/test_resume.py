"""state_dict() and load_state_dict(): what follows is what the run that was not interrupted gives."""

from __future__ import annotations

import copy
import itertools
import json
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import Augmented, Passes, assert_same, iterate, label, rng_states, seed_all
from resuming import pairwise, quiet, through_json
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import shmloader
from shmloader.device.prefetch import prefetcher
from shmloader.system import user_line

LENGTH, BATCH = 22, 4
BATCHES = 6
AT = {"at once": 0, "after one": 1, "in the midst": 3, "after the last": BATCHES}
EXACT = {"sample_seeds": True}

pytestmark = quiet


def loader(workers: int, **options: Any) -> shmloader.DataLoader[Any]:
    dataset = options.pop("dataset", None) or Augmented(LENGTH)
    options = {"batch_size": BATCH, "shuffle": True, **options}
    if options.get("batch_sampler") is not None or options.get("sampler") is not None:
        options["shuffle"] = None
    if options.get("batch_sampler") is not None:
        options["batch_size"] = 1
    if workers == 0:
        for only in ("persistent_workers", "multiprocessing_context", "prefetch_factor"):
            options.pop(only, None)
    return shmloader.DataLoader(dataset, num_workers=workers, **options)


def interrupted(made: shmloader.DataLoader[Any], after: int, epochs: int = 0) -> tuple[dict[str, Any], list[Any]]:
    """The state after so many whole epochs and so many batches of the next, and what follows: two epochs' batches."""
    for _ in range(epochs):
        iterate(made)
    batches = iter(made)
    for _ in range(after):
        next(batches)
    state = through_json(made.state_dict())
    return state, [list(batches), iterate(made)]


def resumed(made: shmloader.DataLoader[Any], state: dict[str, Any], epochs: int = 1) -> list[Any]:
    made.load_state_dict(state)
    with made:
        return [iterate(made) for _ in range(epochs)]


def rows(epochs: list[Any]) -> list[Any]:
    """The indices of all samples."""
    return [[batch["i"].tolist() for batch in batches] for batches in epochs]


# ------------------------------------------------------------------------------------------------------- the matrix


def cases() -> list[Any]:
    """Each two values of two of these meet at least once."""
    axes = [list(AT), [0, 1, 2, 4], [0, 1, 3], ["round_robin", "steal"], ["fork", "spawn"], [False, True]]
    return pairwise(axes, cost=lambda case: case[4] == "spawn")  # which takes a second to start: as few as can be


@pytest.mark.parametrize(("at", "workers", "others", "schedule", "start", "device"), cases())
def test_the_rest_is_the_same_to_the_bit(
    at: str, workers: int, others: int, schedule: str, start: str, device: bool
) -> None:
    options: dict[str, Any] = {"schedule": schedule, "multiprocessing_context": start, **EXACT}
    options |= {"device": "cpu", "on_device": copy.copy} if device else {}
    seed_all()
    with loader(workers, **options) as first:
        iterate(first) if start == "fork" else first.set_epoch(1)  # a start by spawn takes a second
        batches = iter(first)
        for _ in range(AT[at]):
            next(batches)
        state, rest = through_json(first.state_dict()), list(batches)
    seed_all(8)
    again = loader(others, **options)
    assert_same(resumed(again, state), [rest])
    assert again.state_dict()["epoch"] == 2 and len(rest) == BATCHES - AT[at]


@pytest.mark.parametrize(
    ("at", "workers", "others", "options"),
    [
        *zip(AT, (0, 2, 0, 2), (2, 3, 0, 0), [{}] * 4, strict=True),
        ("the next epoch", 0, 0, {}),
        ("the next epoch", 2, 2, {"persistent_workers": True}),
        ("the next epoch", 2, 2, {"chunk_size": 2}),
    ],
    ids=label,
)
def test_with_the_generator_restored_the_next_epochs_are_the_same_too(
    at: str, workers: int, others: int, options: dict[str, Any]
) -> None:
    """As whoever saves a checkpoint does: torch's generator goes with it."""
    options = {**options, **EXACT}
    seed_all()
    with loader(workers, **options) as first:
        batches = iter(first)
        for _ in range(AT.get(at, 0)):
            next(batches)
        if at == "the next epoch":
            list(batches)
        state, generator = first.state_dict(), torch.get_rng_state()
        expected = [list(batches) if at in AT else iterate(first), iterate(first), iterate(first)]
    assert (state["epoch"], state["begun"]) == ((0, True) if at in AT else (1, False))
    seed_all(8)
    torch.set_rng_state(generator)
    assert_same(resumed(loader(others, **options), state, 3), expected)


# torch's streams of draws end with their workers; what is drawn from then on is another run's.
@pytest.mark.parametrize("workers", [1, 2])
def test_with_torchs_seeds_the_indices_are_the_same(workers: int) -> None:
    seed_all()
    with loader(workers) as first:
        state, (rest, _) = interrupted(first, 2)
    got = [resumed(loader(workers), state) for _ in range(2)]
    assert rows(got[0]) == rows([rest])
    assert_same(got[1], got[0])
    drawn = [batch["r"].tolist() for batch in [*got[0][0], *rest]]
    assert len({value for row in drawn for value in row}) == sum(map(len, drawn)), "workers are seeded anew"
    seed_all()
    with loader(workers) as first:
        state, (rest, _) = interrupted(first, 0)
    seed_all(8)
    assert_same(resumed(loader(workers), state), [rest])


# ----------------------------------------------------------------------------------------------------- the samplers


class Guessed:
    """A sampler that nothing is known of."""

    def __init__(self) -> None:
        self.started = 0

    def __iter__(self) -> Iterator[int]:
        self.started += 1
        return iter(torch.randperm(LENGTH).tolist())


class Shard(BatchSampler):
    """Every other batch of another sampler, as accelerate deals them out to its ranks."""

    def __init__(self, batch_sampler: BatchSampler, ranks: int = 2) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes, self.process_index = ranks, 1

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(iter(self.batch_sampler), 1, None, 2)

    def __len__(self) -> int:
        return len(self.batch_sampler) // 2


WEIGHTS = [1.0 + k % 3 for k in range(LENGTH)]
SAMPLERS: dict[str, Any] = {
    "sequential": lambda g: {"sampler": SequentialSampler(range(LENGTH))},
    "random": lambda g: {"sampler": RandomSampler(range(LENGTH))},
    "random, replacing": lambda g: {"sampler": RandomSampler(range(LENGTH), replacement=True, num_samples=50)},
    "random, generator": lambda g: {"sampler": RandomSampler(range(LENGTH), generator=g)},
    "random, replacing, generator": lambda g: {
        "sampler": RandomSampler(range(LENGTH), replacement=True, num_samples=50, generator=g)
    },
    "the loader's generator": lambda g: {"shuffle": True, "generator": g},
    "two generators": lambda g: {
        "sampler": RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(g.initial_seed() + 1)),
        "generator": g,
    },
    "weighted": lambda g: {"sampler": WeightedRandomSampler(WEIGHTS, LENGTH)},
    "weighted, generator": lambda g: {"sampler": WeightedRandomSampler(WEIGHTS, LENGTH, generator=g)},
    "subset": lambda g: {"sampler": SubsetRandomSampler(range(0, LENGTH, 2))},
    "subset, generator": lambda g: {"sampler": SubsetRandomSampler(range(0, LENGTH, 2), generator=g)},
    "distributed": lambda g: {"sampler": torch.utils.data.DistributedSampler(range(LENGTH), 2, 1)},
    "elastic": lambda g: {"sampler": shmloader.DistributedSampler(range(LENGTH), 2, 1)},
    "batches": lambda g: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH)), 3, True)},
    "no batches": lambda g: {"batch_size": None, "shuffle": True},
    "batches of one's own": lambda g: {"batch_sampler": [[0, 1, 2], (3, 4), [5], [6, 7, 8]]},
    "shards": lambda g: {"batch_sampler": Shard(BatchSampler(RandomSampler(range(LENGTH), generator=g), 2, True))},
    "guessed": lambda g: {"sampler": Guessed()},
}
SMALL = {"sequential", "random", "random, replacing", "distributed", "elastic", "batches", "no batches"}


@pytest.mark.parametrize(
    ("sampler", "workers", "after"),
    [
        *((sampler, 0, after) for sampler in SAMPLERS for after in (0, 1, 2)),
        *(pytest.param(sampler, 2, 1, marks=() if sampler in SMALL else pytest.mark.long) for sampler in SAMPLERS),
    ],
)
def test_every_sampler(sampler: str, workers: int, after: int) -> None:
    def made(seed: int) -> shmloader.DataLoader[Any]:
        seed_all(seed)
        options = {"dataset": Augmented(60), **SAMPLERS[sampler](torch.Generator().manual_seed(seed)), **EXACT}
        return loader(workers, **options)

    with made(1) as first:
        iterate(first)
        batches = iter(first)
        for _ in range(after):
            next(batches)
        state, generator = through_json(first.state_dict()), torch.get_rng_state()
        expected = [list(batches), iterate(first)]
    assert len(json.dumps(state)) < (1000 if sampler in SMALL else 8000)
    again = made(2)
    torch.set_rng_state(generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if sampler in ("guessed", "shards") else "error", RuntimeWarning)
        got = resumed(again, state, 2)
    if sampler == "guessed" and not workers and not after:
        got, expected = got[:1], expected[:1]  # nothing was drawn of it, and nobody knows what will be
    assert_same(got, expected)


def test_shards_go_on_with_as_many_ranks() -> None:
    def made(ranks: int) -> shmloader.DataLoader[Any]:
        return shmloader.DataLoader(range(60), batch_sampler=Shard(BatchSampler(range(60), 2, True), ranks))

    first = made(2)
    next(iter(first))
    state = first.state_dict()
    assert (state["ranks"], state["samples"], state["batches"]) == (2, 4, 1)
    with pytest.raises(ValueError, match="shared by 2 ranks, and now there are 4"):
        made(4).load_state_dict(state)


def test_another_batch_size_goes_on_with_the_same_samples() -> None:
    seed_all()
    with loader(2, **EXACT) as first:
        state, (rest, _) = interrupted(first, 2)
    got = resumed(loader(1, batch_size=5, schedule="steal"), state)
    for key in ("i", "r", "x"):
        assert_same(torch.cat([batch[key] for batch in got[0]]), torch.cat([batch[key] for batch in rest]))


@pytest.mark.filterwarnings("ignore:.*same order")
@pytest.mark.parametrize("taken", [1, 2])
def test_another_batch_size_goes_on_with_the_same_samples_of_an_own_sampler(taken: int) -> None:
    sampler: Any = [(7 * k + 3) % LENGTH for k in range(LENGTH)]
    first = iter(made := shmloader.DataLoader(range(LENGTH), 4, sampler=sampler))
    got = [next(first).tolist() for _ in range(taken)]
    again = shmloader.DataLoader(range(LENGTH), 3, sampler=sampler)
    again.load_state_dict(made.state_dict())
    got += [batch.tolist() for batch in again]
    assert list(itertools.chain(*got)) == sampler and len(got[-2]) == 3


# -------------------------------------------------------------------------------------------- the rest of the contract


def test_the_keys_are_always_the_same_and_it_starts_nothing() -> None:
    made = loader(2, generator=torch.Generator())
    before = torch.get_rng_state(), random.getstate()
    fresh = made.state_dict()
    assert not made._iterator and (fresh["epoch"], fresh["begun"]) == (0, False)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    with made:
        batches = iter(made)
        states = []
        for _ in range(3):
            next(batches)
            state = torch.get_rng_state(), made.generator.get_state()
            states.append(made.state_dict())
            assert torch.equal(torch.get_rng_state(), state[0]) and torch.equal(made.generator.get_state(), state[1])
        list(batches)
    states.append(made.state_dict())
    assert {tuple(state) for state in states} == {tuple(fresh)}
    assert [state["samples"] for state in states] == [4, 8, 12, 0]
    assert states[-1]["epoch"] == 1
    assert json.loads(json.dumps(states)) == states


def test_without_workers_the_trainers_own_generators_stay_where_they_are() -> None:
    batches = iter(loader(0, shuffle=False, **EXACT))
    seed_all()
    before = rng_states()
    first = next(batches)
    assert_same(rng_states(), before)
    assert len(set(first["r"].tolist())) == BATCH


@pytest.mark.forked
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_ready_is_not_counted_and_an_error_is(workers: int) -> None:
    class Failing(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise ValueError("five")
            return super().__getitem__(index)

    made = loader(workers, dataset=Failing(LENGTH), shuffle=False, **EXACT)
    with made:
        batches = iter(made)
        assert made.state_dict()["batches"] == 0
        next(batches)
        assert made.state_dict()["batches"] == 1
        with pytest.raises(ValueError, match="five"):
            next(batches)
        state = made.state_dict()
        rest = list(batches)
    assert (state["batches"], state["samples"]) == (2, 8)
    assert_same(resumed(loader(1, shuffle=False, **EXACT), state), [rest])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_left_keeps_its_place(workers: int) -> None:
    seed_all()
    made = loader(workers, **EXACT)
    for at, _ in enumerate(made):
        if at == 1:
            break
    state = made.state_dict()
    assert (state["batches"], state["begun"]) == (2, True)
    seed_all()
    with loader(workers, **EXACT) as whole:
        rest = list(whole)[2:]
    assert_same(resumed(made, state), [rest])


def test_loaded_twice_and_loaded_and_never_used() -> None:
    seed_all()
    with loader(2, **EXACT) as first:
        batches = iter(first)
        states = []
        for _ in range(3):
            states.append(first.state_dict())
            next(batches)
        rest = list(batches)
    made = loader(2, **EXACT)
    made.load_state_dict(states[2])
    assert made.state_dict() == states[2]
    made.load_state_dict(states[0])
    made.load_state_dict(states[2])
    with made:
        got = iterate(made)
    assert_same(got[1:], rest)
    unused = loader(2, **EXACT)
    unused.load_state_dict(states[1])
    assert unused.state_dict() == states[1] and unused._iterator is None


@pytest.mark.parametrize("options", [{}, EXACT, {"schedule": "steal"}], ids=label)
def test_into_a_loader_whose_workers_are_there(options: dict[str, Any]) -> None:
    """The iterator that exists goes on as it is; the next one begins at the place."""
    options = {**options, "persistent_workers": True}
    seed_all()
    with loader(2, **options) as first:
        state, (rest, _) = interrupted(first, 2)
    with loader(2, **options) as second:
        batches = iter(second)
        workers = [worker.pid for worker in batches._workers]
        next(batches)
        second.load_state_dict(state)
        assert len(list(batches)) == BATCHES - 1
        assert second.state_dict() == state
        got = iterate(second)
        others = [worker.pid for worker in second._iterator._workers]
    assert (others == workers) == bool(options.get("sample_seeds") or "schedule" in options)
    assert rows([got]) == rows([rest])
    if others == workers:
        assert_same(got, rest)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_thread_that_is_ahead_is_not_the_user(workers: int) -> None:
    """device= has a thread take batches before the user does."""
    seed_all()
    with loader(workers, **EXACT) as first:
        source: Any = iter(first)
        counted = source.epoch.delivered
        with prefetcher(first, source, Passes(), 3) as batches:
            for handed_on in range(2):
                while counted.batches < 3 + handed_on:
                    time.sleep(0.005)
                assert first.state_dict()["batches"] == handed_on
                if not handed_on:
                    next(batches)
            assert (first.state_dict()["batches"], first.state_dict()["samples"]) == (1, 4)
            assert len(list(batches)) == BATCHES - 1
            assert (first.state_dict()["epoch"], first.state_dict()["begun"]) == (1, False)


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 1}, "has version 1, and this shmloader reads version 2"),
        ({"sampler": "SequentialSampler"}, "ordered by SequentialSampler, and this loader's are by RandomSampler"),
        ({"samples": 1.5}, "changed since it was saved: samples is 1.5"),
        ({"used_up": 3}, "changed since it was saved: used_up is 3"),
        ({"begun": None}, "changed since it was saved: begun is None"),
        ({"latest": None}, "changed since it was saved: latest is None"),
        ({"streams": [1, 2]}, "changed since it was saved: streams is "),
        ({"ranks": 3}, "shared by 3 ranks, and now there are 1. Use as many ranks until"),
        ({"rank": 1}, "that of rank 1, and this is rank 0"),
    ],
    ids=label,
)
def test_states_that_cannot_be_loaded(change: dict[str, Any], says: str) -> None:
    made = loader(0)
    state = interrupted(made, 1)[0]
    with pytest.raises(ValueError, match=says):
        made.load_state_dict({**state, **change})
    assert made.state_dict()["epoch"] == 2
    made.load_state_dict({**state, "_iterator_finished": False})  # accelerate adds keys of its own


def test_what_is_no_state() -> None:
    with pytest.raises(ValueError, match=r"no state of a shmloader.DataLoader: it has no version, epoch"):
        loader(0).load_state_dict({"_num_yielded": 3})
    with pytest.raises(TypeError, match="but got a NoneType"):
        loader(0).load_state_dict(None)  # type: ignore[arg-type]


def test_an_unknown_sampler_is_warned_of_once() -> None:
    user_line._met.clear()
    seed_all()
    first = loader(0, sampler=Guessed(), **EXACT)
    state, (rest, _) = interrupted(first, 2)
    again = loader(1, sampler=Guessed(), **EXACT)
    with pytest.warns(RuntimeWarning, match="Guessed.*skips what.*same order again.*state_dict"):
        assert_same(resumed(again, state), [rest])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        resumed(loader(1, sampler=Guessed(), **EXACT), state)


@pytest.mark.off_the_ring
def test_off_the_ring_with_workers_the_error_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())  # an earlier test may have warned of this reason
    from torch.utils.data.datapipes.iter import IterableWrapper

    made: Any = shmloader.DataLoader(IterableWrapper(range(4)), num_workers=1)
    for call in (made.state_dict, lambda: made.load_state_dict({})):
        with pytest.raises(RuntimeError, match=r"state_dict\(\) needs a loader that rides.*DataPipes"):
            call()
    with pytest.warns(RuntimeWarning, match="does not ride"):
        list(made)
