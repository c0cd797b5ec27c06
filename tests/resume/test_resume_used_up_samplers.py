"""A sampler whose state says that it is used up: the first whole epoch after the load is not empty."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Augmented, iterate, label
from test_resume import through_json
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Yielded(DistributedSampler[Any]):
    """Keeps how many it has given until the next iter(), as torchdata's StatefulDistributedSampler does."""

    def __init__(self) -> None:
        super().__init__(range(10), 1, 0)  # type: ignore[arg-type]
        self.count, self.first = 0, 0

    def __iter__(self) -> Iterator[int]:
        self.count, self.first = self.first, 0
        for index in list(super().__iter__())[self.count :]:
            self.count += 1
            yield index

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["count"]


class Cuts(Sampler[int]):
    """Its own iterator, without a length.  After a load, set_epoch() and iter() wait for next(), as lhotse's do."""

    def __init__(self) -> None:
        self.epoch, self.at, self.is_restored = 0, 0, False

    def set_epoch(self, epoch: int) -> None:
        if not self.is_restored:
            self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if not self.is_restored:
            self.at = 0
        return self

    def __next__(self) -> int:
        self.is_restored = False
        if self.at >= 10:
            raise StopIteration
        self.at += 1
        return self.at * (1, 3, 7, 9)[self.epoch] % 10

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.is_restored = state["epoch"], state["at"], True


class Numbered(Cuts):
    """The same with a length, and a set_epoch() that counts at any time."""

    def __len__(self) -> int:
        return 10

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class StartsOver(Numbered):
    """At its end it is at the beginning again, so its state is never that of its end."""

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.at = 0
            raise


class ReadsInIter(Cuts):
    """Only the `__iter__` after a load goes on from the loaded place, whatever was drawn between them."""

    is_loaded = False

    def __iter__(self) -> Iterator[int]:
        if not self.is_loaded:
            self.at = 0
        self.is_loaded = False
        return self

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.is_loaded = True


AS: dict[str, Any] = {
    "samples": lambda kind: {"sampler": kind(), "batch_size": None},
    "batches": lambda kind: {"batch_sampler": BatchSampler(kind(), 5, True)},
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "device": "cpu", "on_device": dict},
]
SAVED = ["between two epochs", "before the first batch", "behind the last batch"]


def cases() -> list[Any]:
    found = []
    for options, how, kind, saved in itertools.product(OPTIONS, AS, (Yielded, Cuts, Numbered), SAVED):
        is_short = not options or (options == OPTIONS[1] and how == "samples" and kind is not Numbered)
        found.append(
            pytest.param(
                options,
                how,
                kind,
                saved,
                id=f"{label(options)}-{how}-{kind.__name__}-{saved}",
                marks=() if is_short else pytest.mark.long,
            )
        )
    return found


def numbers(batches: list[Any]) -> list[Any]:
    return [batch["i"] if isinstance(batch["i"], int) else batch["i"].tolist() for batch in batches]


@pytest.mark.parametrize(("options", "how", "kind", "saved"), cases())
@pytest.mark.filterwarnings("error:.* gave nothing after its state was loaded")
def test_the_next_epoch_is_whole(options: dict[str, Any], how: str, kind: Any, saved: str) -> None:
    theirs = DataLoader(Augmented(10), **AS[how](kind))
    expected = []
    for epoch in range(4):
        sampler_in(theirs).set_epoch(epoch)
        expected.append(numbers(iterate(theirs)))
    assert len({str(each) for each in expected}) == 4
    with shmloader.DataLoader(Augmented(10), **AS[how](kind), **options) as first:
        first.set_epoch(0)
        batches = iter(first)
        for _ in range(len(expected[0])):
            next(batches)
        if saved != "behind the last batch":
            assert next(batches, None) is None
        if saved == "before the first batch":
            first.set_epoch(1)
            batches = iter(first)
        state = through_json(first.state_dict())
    with shmloader.DataLoader(Augmented(10), **AS[how](kind), **options) as again:
        again.load_state_dict(state)
        got = []
        for epoch in range(state["epoch"], 4):
            again.set_epoch(epoch)
            got.append(numbers(iterate(again)))
    assert got == ([[]] if saved == "behind the last batch" else []) + expected[1:]


def sampler_in(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler.sampler


@pytest.mark.parametrize("kind", [Numbered, StartsOver])
def test_the_samplers_own_set_epoch_counts_after_a_load(kind: Any) -> None:
    theirs = DataLoader(Augmented(10), None, sampler=kind())
    first = shmloader.DataLoader(Augmented(10), None, sampler=kind())
    iterate(first)
    again = shmloader.DataLoader(Augmented(10), None, sampler=kind())
    again.load_state_dict(first.state_dict())
    for loader in theirs, again:
        sampler_in(loader).set_epoch(2)
    assert numbers(iterate(again)) == numbers(iterate(theirs))


@pytest.mark.parametrize("kind", [Yielded, Cuts])
@pytest.mark.parametrize("workers", [0, 1])
def test_saved_again_before_the_first_batch_of_a_resumed_epoch(kind: Any, workers: int) -> None:
    """The sampler may return an older place until it is asked for an index."""

    def made() -> Any:
        return shmloader.DataLoader(Augmented(10), None, sampler=kind(), num_workers=workers)

    with made() as first:
        batches = iter(first)
        for _ in range(3):
            next(batches)
        state, rest = through_json(first.state_dict()), numbers(list(batches))
    with made() as second:
        second.load_state_dict(state)
        iter(second)
        again = through_json(second.state_dict())
    with made() as third:
        third.load_state_dict(again)
        assert numbers(iterate(third)) == rest


@pytest.mark.parametrize("how", AS)
@pytest.mark.parametrize("kind", [Yielded, Cuts, Numbered, ReadsInIter])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("error:.* gave nothing after its state was loaded")
def test_persistent_workers_have_saved_it(workers: int, kind: Any, how: str) -> None:
    """The state then has their seed, so torch's iterator begins before the state is loaded into the sampler."""
    with shmloader.DataLoader(Augmented(10), **AS[how](kind), num_workers=1, persistent_workers=True) as first:
        expected = [numbers(iterate(first)) for _ in range(2)]
    with shmloader.DataLoader(Augmented(10), **AS[how](kind), num_workers=1, persistent_workers=True) as first:
        assert numbers(iterate(first)) == expected[0]
        state = through_json(first.state_dict())
    with shmloader.DataLoader(Augmented(10), **AS[how](kind), num_workers=workers) as again:
        again.load_state_dict(state)
        assert numbers(iterate(again)) == expected[1]


class Empties(Cuts):
    """load_state_dict() takes the items out of what it gets, as lhotse's does."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({key: state.pop(key) for key in list(state)})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_a_sampler_empties_can_be_loaded_again(workers: int) -> None:
    def made() -> Any:
        return shmloader.DataLoader(range(10), batch_size=None, sampler=Empties(), num_workers=workers)

    def rest(state: Any) -> list[int]:
        loader = made()
        loader.load_state_dict(state)
        return [int(number) for number in loader]

    first = made()
    batches = iter(first)
    got = [int(next(batches)) for _ in range(5)]
    state = first.state_dict()
    before = copy.deepcopy(state)
    second = made()
    second.load_state_dict(state)
    again = iter(second)
    saved_again = second.state_dict()  # before the first batch of the resumed epoch
    expected = [int(number) for number in batches]
    assert len(got) + len(expected) == 10 and [int(number) for number in again] == expected
    assert state == before and rest(state) == rest(state) == rest(saved_again) == expected
    for loader in (first, second):
        loader.close()


class Stuck(Yielded):
    """Stays at its end after a load."""

    def __iter__(self) -> Iterator[int]:
        return iter(()) if self.first else super().__iter__()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_stays_at_its_end(workers: int) -> None:
    def made() -> Any:
        return shmloader.DataLoader(Augmented(10), None, sampler=Stuck(), num_workers=workers)

    with made() as first:
        iterate(first)
        state = first.state_dict()
    with made() as again, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again.load_state_dict(state)
        assert [list(again), list(again)] == [[], []]
    found = [each for each in caught if "gave nothing" in str(each.message)]
    assert [(each.category, each.filename) for each in found] == [(RuntimeWarning, __file__)]
    assert str(found[0].message).startswith("Stuck, of length 10, gave nothing after its state was loaded, in two")


def test_an_empty_sampler_is_not_asked_twice() -> None:
    class Empty(Yielded):
        starts = 0

        def __len__(self) -> int:
            return 0

        def __iter__(self) -> Iterator[int]:
            self.starts += 1
            return iter(())

    loader = shmloader.DataLoader(Augmented(10), None, sampler=Empty())
    iterate(loader)
    loader.load_state_dict(loader.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader) == []
    assert sampler_in(loader).starts == 2
