"""Iterators that iter() restarts, as lhotse's samplers are: iter() is called once an epoch, and then only next()."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Augmented, iterate, label
from test_resume import through_json
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:the (sampler|dataset) .* has no state_dict"),
]
SAMPLES = [3, 9, 0, 4, 7, 1, 8, 2, 6, 5]
BATCHES = [[3, 9, 0], [4], [7, 1], [8, 2, 6], [5]]


class Restarting(Sampler[Any]):
    """Its own iterator."""

    def __init__(self, given: list[Any]) -> None:
        self.given, self.at, self.starts = given, len(given), 0

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self) -> Iterator[Any]:
        self.at, self.starts = 0, self.starts + 1
        return self

    def __next__(self) -> Any:
        if self.at >= len(self.given):
            raise StopIteration
        self.at += 1
        return self.given[self.at - 1]


class Stateful(Restarting):
    """After a load, iter() keeps the place until the first next(), as in lhotse."""

    is_restored = False

    def __iter__(self) -> Iterator[Any]:
        return self if self.is_restored else super().__iter__()

    def __next__(self) -> Any:
        self.is_restored = False
        return super().__next__()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.is_restored = state["at"], True


class Strict(Stateful):
    """After a load, only the first iter() keeps the place."""

    def __iter__(self) -> Iterator[Any]:
        kept = super().__iter__()
        self.is_restored = False
        return kept


class Wrapping(Stateful):
    """At its end, it is at the beginning again."""

    def __next__(self) -> Any:
        if self.at >= len(self.given):
            self.at = 0
            raise StopIteration
        return super().__next__()


def dropping(kind: Any) -> dict[str, Any]:
    """torch's BatchSampler calls iter() of such a sampler for each batch, and with drop_last only at the beginning."""
    return {"batch_sampler": BatchSampler(kind(SAMPLES), 3, True)}


AS: dict[str, Any] = {
    "sampler": lambda kind: {"sampler": kind(SAMPLES), "batch_size": None},
    "batch_sampler": lambda kind: {"batch_sampler": kind(BATCHES)},
    "wrapped": dropping,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"device": "cpu", "on_device": dict},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "in_order": False},
    {"num_workers": 2, "schedule": "steal"},
    {"num_workers": 2, "device": "cpu", "on_device": dict},
    {"num_workers": 2, "multiprocessing_context": "forkserver"},
]
KINDS = [Restarting, Stateful, Strict, Wrapping]


def cases() -> list[Any]:
    """Each with each; those are short that have no workers, or differ in one thing from a sampler with a state."""
    found = []
    for options, how, kind in itertools.product(OPTIONS, AS, KINDS):
        differ = (options not in (OPTIONS[0], OPTIONS[2])) + (how != "sampler") + (kind is not Stateful)
        marks = [pytest.mark.long] if options and (differ > 1 or options == OPTIONS[-1]) else []
        found.append(pytest.param(options, how, kind, id=f"{label(options)}-{how}-{kind.__name__}", marks=marks))
    return found


def numbers(batches: list[Any]) -> list[Any]:
    return [batch["i"] if isinstance(batch["i"], int) else batch["i"].tolist() for batch in batches]


def sampler_in(loader: Any) -> Any:
    found = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return found.sampler if type(found) is BatchSampler else found


@pytest.mark.parametrize(("options", "how", "kind"), cases())
def test_whole_epochs_are_torchs(options: dict[str, Any], how: str, kind: Any) -> None:
    theirs = DataLoader(Augmented(10), **AS[how](kind))
    expected = [numbers(iterate(theirs)) for _ in range(3)]
    with shmloader.DataLoader(Augmented(10), **AS[how](kind), **options) as loader:
        got = [numbers(iterate(loader, 50)) for _ in range(3)]
        starts = sampler_in(loader).starts
    if options.get("in_order", True):
        assert got == expected
    else:
        assert [sorted(each) for each in got] == [sorted(each) for each in expected]
    if how != "wrapped":
        if "num_workers" not in options:
            assert starts == sampler_in(theirs).starts == 3
        else:  # torch's iterators with workers begin the sampler twice, and so do ours
            assert starts == (4 if options.get("persistent_workers") else 6)


@pytest.mark.parametrize(("options", "how", "kind"), cases())
def test_the_rest_of_an_epoch(options: dict[str, Any], how: str, kind: Any) -> None:
    def made() -> Any:
        return shmloader.DataLoader(Augmented(10), **AS[how](kind), **options)

    expected = numbers(iterate(DataLoader(Augmented(10), **AS[how](kind))))
    ends, keeps_order = (0, len(expected)), options.get("in_order", True)  # without it, there is no state in mid-epoch
    for after in range(len(expected) + 1) if not options else (0, 2, len(expected)) if keeps_order else ends:
        with made() as first:
            batches = iter(first)
            got = [next(batches) for _ in range(after)]
            state = through_json(first.state_dict())
            rest = numbers(list(itertools.islice(batches, 50)))
        assert numbers(got) + rest == expected or not keeps_order
        with made() as again:
            again.load_state_dict(state)
            resumed = [numbers(iterate(again, 50)) for _ in range(3)]
        if keeps_order:
            assert resumed == [expected[after:], expected, expected], after
        else:
            assert [sorted(numbers(got) + resumed[0]), *map(sorted, resumed[1:])] == [sorted(expected)] * 3


class Stream(IterableDataset[int]):
    """Its iterator gives the numbers again from the beginning after each iter()."""

    def __iter__(self) -> Iterator[int]:
        return iter(Restarting(list(range(10))))


class Failing(Stream):
    """Raises at a place, once."""

    is_over = False

    def __iter__(self) -> Iterator[int]:
        given = RaisesOnce(list(range(10)))
        given.has_raised = self.is_over
        return iter(given)


class RaisesOnce(Restarting):
    has_raised = False

    def __next__(self) -> Any:
        if self.at == 3 and not self.has_raised:
            self.has_raised = True
            raise ValueError("once")
        return super().__next__()


def flat(batches: Any) -> list[int]:
    return [number for batch in itertools.islice(batches, 20) for number in batch.tolist()]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_rest_of_a_stream(workers: int) -> None:
    for after in (0, 2, 4):
        with shmloader.DataLoader(Stream(), 2, num_workers=workers) as first:
            batches = iter(first)
            assert flat(next(batches) for _ in range(after)) == list(range(2 * after))
            state = through_json(first.state_dict())
            assert flat(batches) == list(range(2 * after, 10))
        with shmloader.DataLoader(Stream(), 2, num_workers=workers) as again:
            again.load_state_dict(state)
            assert flat(again) == list(range(2 * after, 10))


@pytest.mark.parametrize("workers", [0, 1])
def test_the_rest_of_a_stream_that_raised_and_does_not_raise_again(workers: int) -> None:
    with shmloader.DataLoader(Failing(), 2, num_workers=workers) as first:
        batches = iter(first)
        assert flat([next(batches)]) == [0, 1]
        with pytest.raises(ValueError, match="once"):
            next(batches)
        state = through_json(first.state_dict())
    dataset = Failing()
    dataset.is_over = True
    with shmloader.DataLoader(dataset, 2, num_workers=workers) as again:
        again.load_state_dict(state)
        assert flat(again) == list(range(3, 10))
