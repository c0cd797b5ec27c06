"""Iterable datasets: each worker's copy says where it is behind each batch, and goes on from there."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import Passes, assert_same, iterate, seed_all
from torch.utils.data import IterableDataset, get_worker_info

import shmloader
from shmloader.device.prefetch import prefetcher
from shmloader.resume import iterables

LENGTH = 26

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def part() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


class Plain(IterableDataset[int]):
    """It does not say where it is; worker k's part ends early, so that parts are not equally long."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        first, step = part()
        return iter(range(first, self.length - 6 * (first % 2), step))


class Stateful(Plain):
    """It says where it is, in an attribute, and counts the samples that it has made."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)
        self.at, self.made = 0, 0

    def __iter__(self) -> Iterator[Any]:
        first, step = part()
        numbers = range(first, self.length - 6 * (first % 2), step)
        while self.at < len(numbers):
            self.at += 1
            self.made += 1
            yield numbers[self.at - 1], self.made
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Numbers:
    """An iterator that says where it is."""

    def __init__(self, numbers: range) -> None:
        self.numbers, self.at = numbers, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at >= len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class OfNumbers(Plain):
    def __iter__(self) -> Iterator[int]:
        first, step = part()
        return Numbers(range(first, self.length - 6 * (first % 2), step))


def loader(dataset: Any, workers: int, **options: Any) -> shmloader.DataLoader[Any]:
    if not workers:
        options = {k: v for k, v in options.items() if k not in ("persistent_workers", "multiprocessing_context")}
    return shmloader.DataLoader(dataset, **{"batch_size": 3, **options}, num_workers=workers)


def first(batch: Any) -> list[int]:
    numbers = batch[0] if isinstance(batch, (list, tuple)) else batch
    return numbers.tolist() if isinstance(numbers, torch.Tensor) else [numbers]


def whole(dataset: Any, workers: int, **options: Any) -> list[list[int]]:
    with loader(dataset(), workers, **options) as made:
        return [first(batch) for batch in made]


KINDS = pytest.mark.parametrize("dataset", [Plain, Stateful, OfNumbers])
quiet = pytest.mark.filterwarnings("ignore:the dataset .* has no state_dict")


@quiet
@KINDS
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        pytest.param(1, {}, marks=pytest.mark.long),
        (2, {}),
        pytest.param(3, {"drop_last": True}, marks=pytest.mark.long),
        pytest.param(2, {"batch_size": None}, marks=pytest.mark.long),
        pytest.param(2, {"persistent_workers": True}, marks=pytest.mark.long),
        pytest.param(2, {"prefetch_factor": 5}, marks=pytest.mark.long),
        pytest.param(2, {"device": "cpu", "on_device": lambda batch: batch}, marks=pytest.mark.long),
        (0, {"device": "cpu", "on_device": lambda batch: batch}),
    ],
)
def test_the_rest_is_the_same(dataset: Any, workers: int, options: dict[str, Any]) -> None:
    expected = whole(dataset, workers, **options)
    for after in sorted({0, 1, 4, len(expected) - 1, len(expected)}):
        with loader(dataset(), workers, **options) as one:
            batches = iter(one)
            for _ in range(after):
                next(batches)
            state = json.loads(json.dumps(one.state_dict()))
        assert state["batches"] == after
        with loader(dataset(), workers, **options) as other:
            other.load_state_dict(state)
            again = iter(other)
            got = [first(batch) for batch in itertools.islice(again, 2)]
            state = other.state_dict()  # a second time in this epoch
            got += [first(batch) for batch in again]
            assert got == expected[after:]
            assert other.state_dict()["begun"] is False
            if not options.get("persistent_workers"):
                assert [first(batch) for batch in other] == expected, "the next epoch comes whole"
        with loader(dataset(), workers, **options) as third:
            third.load_state_dict(state)
            assert [first(batch) for batch in third] == (expected[after + 2 :] if state["begun"] else expected)


@KINDS
def test_out_of_order_nothing_is_lost_and_nothing_repeated(dataset: Any) -> None:
    iterables._warned.add(dataset.__name__)
    expected = sorted(itertools.chain(*whole(dataset, 3)))
    for after in (1, 4, 6):
        with loader(dataset(), 3, in_order=False) as one:
            batches = iter(one)
            had = [k for _ in range(after) for k in first(next(batches))]
            state = one.state_dict()
        with loader(dataset(), 3, in_order=False) as other:
            other.load_state_dict(state)
            had += [k for batch in other for k in first(batch)]
        assert sorted(had) == expected


def test_no_sample_is_made_again() -> None:
    with loader(Stateful(), 2) as one:
        batches = iter(one)
        for _ in range(3):
            next(batches)
        state = one.state_dict()
    with loader(Stateful(), 2) as other:
        other.load_state_dict(state)
        _, made = next(iter(other))
        assert made.tolist() == [1, 2, 3], "the first that this worker has made"


def test_it_is_read_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """States stay in the ring's cells, of which there are always enough."""
    with loader(Stateful(300), 2, prefetch_factor=3) as made:
        batches: Any = iter(made)
        cells = batches._ring.cells if hasattr(batches._ring, "cells") else None
        for count, _ in enumerate(batches, 1):
            if count == 50:
                state = made.state_dict()
        assert cells in (None, 2 * 3 + 2 + 1)
    assert [stream["state"]["dataset"]["at"] for stream in state["streams"][0]] == [75, 75]
    assert state["latest"] == 1


def test_an_epoch_that_was_left_keeps_its_place() -> None:
    expected = whole(Stateful, 2)
    made = loader(Stateful(), 2)
    for count, _ in enumerate(made, 1):
        if count == 3:
            break
    state = made.state_dict()
    assert [stream["state"]["dataset"] for stream in state["streams"][0]] == [{"at": 6}, {"at": 3}]
    made.load_state_dict(state)
    with made:
        assert [first(batch) for batch in made] == expected[3:]


def test_a_thread_that_is_ahead_is_not_the_user() -> None:
    expected = whole(Stateful, 2)
    with loader(Stateful(), 2) as one:
        source: Any = iter(one)
        with prefetcher(one, source, Passes(), 3) as batches:
            next(batches)
            while source.epoch.reading.delivered.batches < 4:
                time.sleep(0.005)
            state = one.state_dict()
    assert (state["batches"], state["latest"]) == (1, 0)
    with loader(Stateful(), 2) as other:
        other.load_state_dict(state)
        assert [first(batch) for batch in other] == expected[1:]


def test_a_stream_without_a_state_is_warned_of_once() -> None:
    iterables._warned.clear()
    with loader(Plain(), 2) as one:
        batches = iter(one)
        next(batches)
        state = one.state_dict()
    with pytest.warns(RuntimeWarning, match=r"Plain has no state_dict\(\).*are read again.*load_state_dict"):
        loader(Plain(), 2).load_state_dict(state)
    loader(Plain(), 2).load_state_dict(state)


@pytest.mark.parametrize(("workers", "others"), [(2, 3), (0, 2), (2, 0)])
def test_other_workers_are_refused(workers: int, others: int) -> None:
    with loader(Stateful(), workers) as one:
        next(iter(one))
        state = one.state_dict()
    says = f"{workers} workers were reading.*num_workers={others}.*Give the loader num_workers={workers}"
    with pytest.raises(ValueError, match=says):
        loader(Stateful(), others).load_state_dict(state)
    with loader(Stateful(), workers) as one:
        iterate(one)
        state = one.state_dict()
    with loader(Stateful(), others) as other:  # between epochs, nobody has a part
        other.load_state_dict(state)
        assert len([k for batch in other for k in first(batch)]) >= 20


def test_another_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    made = loader(Stateful(), 0)
    next(iter(made))
    state = made.state_dict()
    assert state["rank"] == 0
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ValueError, match=r"that of rank 0, and this is rank 1.*Save a state on each rank"):
        loader(Stateful(), 0).load_state_dict(state)


class Fails(Stateful):
    def state_dict(self) -> dict[str, Any]:
        raise ValueError("it cannot say")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_state_dict_raises_is_raised_when_it_is_asked_for(workers: int) -> None:
    with loader(Fails(), workers) as made:
        batches = iter(made)
        next(batches)
        with pytest.raises(ValueError, match="it cannot say"):
            made.state_dict()
        assert len(list(batches)) == len(whole(Stateful, workers)) - 1


class Large(Stateful):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "more": "x" * (200_000 + 100_000 * self.at)}


def test_states_may_be_large_and_grow() -> None:
    expected = whole(Stateful, 2)
    with loader(Large(), 2) as one:
        batches = iter(one)
        for _ in range(4):
            next(batches)
        state = one.state_dict()
    assert all(len(stream["state"]["dataset"]["more"]) == 800_000 for stream in state["streams"][0])
    with loader(Large(), 2) as other:
        other.load_state_dict(state)
        assert [first(batch) for batch in other] == expected[4:]


def test_seeding_each_sample_is_for_maps() -> None:
    with pytest.raises(ValueError, match="sample_seeds=True needs a map-style dataset, but got Plain"):
        shmloader.DataLoader(Plain(), sample_seeds=True)
    seed_all()
    assert_same(whole(Plain, 0), whole(Plain, 1))
