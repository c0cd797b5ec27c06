"""A sampler that keeps a state of its own, saved behind the last batch: nothing is left of the epoch but its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Augmented, assert_same, iterate, label
from test_resume import resumed, rows, through_json
from torch.utils.data import BatchSampler, Sampler

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Own(Sampler[int]):
    """Starts over at its end, in another order, so its state there is that of the next epoch."""

    def __init__(self, length: int) -> None:
        self.length, self.at, self.epoch = length, 0, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield ((2 * self.epoch + 1) * self.at) % self.length
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Late(Own):
    """Starts over when it is asked for another epoch."""

    def __iter__(self) -> Iterator[int]:
        if self.at >= self.length:
            self.at, self.epoch = 0, self.epoch + 1
        while self.at < self.length:
            self.at += 1
            yield ((2 * self.epoch + 1) * self.at) % self.length


class Batches(Sampler[list[int]]):
    """A batch sampler whose state is that of what it batches: with a last batch that is not full, the next epoch's."""

    def __init__(self, sampler: Own, size: int) -> None:
        self.order, self.size = sampler, size

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.order:
            batch.append(index)
            if len(batch) == self.size:
                yield batch
                batch = []
        if batch:
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state)


OPTIONS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 0, "device": "cpu", "on_device": dict},
    {"num_workers": 2},
    {"num_workers": 2, "chunk_size": 2},
    {"num_workers": 2, "schedule": "steal"},
    {"num_workers": 1, "in_order": False},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "device": "cpu", "on_device": dict},
]

KINDS: dict[str, Any] = {
    "a partial batch": lambda kind, length: {"sampler": kind(length), "batch_size": 4},
    "no batches": lambda kind, length: {"sampler": kind(length), "batch_size": None},
    "dropped": lambda kind, length: {"sampler": kind(length), "batch_size": 4, "drop_last": True},
    "batches": lambda kind, length: {"batch_sampler": BatchSampler(kind(length), 4, False)},
    "its own batches": lambda kind, length: {"batch_sampler": Batches(kind(length), 4)},
}


def behind_the_last_batch() -> list[Any]:
    """All, of which those are short that differ in one thing from what the other ways through the ring have too."""
    cases = []
    for options, sampler, kind in itertools.product(OPTIONS, KINDS, (Own, Late)):
        if sampler == "no batches" and "chunk_size" in options:
            continue  # chunks are of batches
        is_short = (options == OPTIONS[0] and kind is Own) or (sampler, kind) == ("a partial batch", Late)
        marks = () if is_short else pytest.mark.long
        cases.append(
            pytest.param(options, sampler, kind, marks=marks, id=f"{label(options)}-{sampler}-{kind.__name__}")
        )
    return cases


@pytest.mark.parametrize(("options", "sampler", "kind"), behind_the_last_batch())
def test_saved_behind_the_last_batch(options: dict[str, Any], sampler: str, kind: Any) -> None:
    def made() -> Any:
        return shmloader.DataLoader(Augmented(10), **options, **KINDS[sampler](kind, 10))

    with made() as whole:
        expected = [iterate(whole) for _ in range(3)]
    places = {1, len(expected[1]) - 1} if len(options) == 1 else set()  # the same everywhere but at the end
    for after in places | {len(expected[1])}:
        with made() as first:
            iterate(first)
            batches = iter(first)
            for _ in range(after):
                next(batches)
            state = through_json(first.state_dict())
            assert state["epoch"] == 1 and state["begun"]
        again = made()
        with again:
            again.load_state_dict(state)
            assert through_json(again.state_dict()) == state
            got = [iterate(again), iterate(again)]
        assert order(got) == order([expected[1][after:], expected[2]]), after


CHANGED = [(sampler, {}) for sampler in KINDS] + [
    ("a partial batch", {"batch_size": 3}),
    ("dropped", {"batch_size": 3}),
]


@pytest.mark.parametrize("kind", [Own, Late])
@pytest.mark.parametrize(("sampler", "changed"), CHANGED, ids=label)
def test_saved_behind_the_last_batch_of_a_resumed_epoch(sampler: str, changed: dict[str, Any], kind: Any) -> None:
    """There, fewer indices are left than the sampler has; and another number of batches, with another batch size."""

    def made(state: Any = None) -> Any:
        loader = shmloader.DataLoader(Augmented(10), **KINDS[sampler](kind, 10) | ({} if state is None else changed))
        if state is not None:
            loader.load_state_dict(state)
        return loader

    first = made()
    next(iter(first))
    state = through_json(first.state_dict())
    rest, second = made(state), made(state)
    count = len(iterate(rest))
    expected = iterate(rest)
    batches = iter(second)
    for _ in range(count):
        next(batches)
    again = made(through_json(second.state_dict()))
    assert order([iterate(again), iterate(again)]) == order([[], expected])


def order(epochs: list[Any]) -> list[Any]:
    return [[batch["i"] if isinstance(batch["i"], int) else batch["i"].tolist() for batch in one] for one in epochs]


def test_saved_again_where_nothing_was_left() -> None:
    def made(workers: int) -> Any:
        return shmloader.DataLoader(Augmented(10), 4, sampler=Own(10), num_workers=workers)

    first = made(0)
    expected = [iterate(first), iterate(first)]
    for workers in (0, 2):
        with made(workers) as saved:
            batches = iter(saved)
            for _ in range(3):
                next(batches)
            state = saved.state_dict()
        with made(workers) as second:
            second.load_state_dict(state)
            iter(second)
            state = second.state_dict()
            assert (state["epoch"], state["batches"]) == (0, 3)
        assert rows(resumed(made(workers), state, 2)) == rows([[], expected[1]])


def test_a_state_of_an_older_version_is_read() -> None:
    """It did not say whether indices were used up."""
    with shmloader.DataLoader(Augmented(10), 4, sampler=Own(10)) as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = list(batches)
    del state["used_up"]
    again = shmloader.DataLoader(Augmented(10), 4, sampler=Own(10))
    assert_same(order(resumed(again, state)), order([rest]))


class Longer(Own):
    """Gives more than its length says."""

    def __len__(self) -> int:
        return 4


def test_a_sampler_that_gives_more_than_its_length() -> None:
    def made() -> Any:
        return shmloader.DataLoader(Augmented(10), None, sampler=Longer(10))

    expected = order([iterate(made())])[0]
    assert len(expected) == 10
    first = made()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    assert order([list(batches)]) == [expected[4:]]
    assert order(resumed(made(), state)) == [expected[4:]]


class Raises(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        raise ValueError("no order")

    def __len__(self) -> int:
        return 4


def test_a_sampler_that_raises_has_ended_as_in_torch() -> None:
    """A loop that passes over errors must come to an end, also where the epoch was resumed."""
    loader = shmloader.DataLoader(Augmented(4), sampler=Raises(), num_workers=0)
    iterator = iter(loader)
    state = loader.state_dict()
    del iterator
    resumed = shmloader.DataLoader(Augmented(4), sampler=Raises(), num_workers=0)
    resumed.load_state_dict(state)
    for iterator in iter(loader), iter(resumed):
        with pytest.raises(ValueError, match="no order"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
