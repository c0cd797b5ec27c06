"""Samplers of the user's own: wherever a run is stopped, the rest of its epoch and the next one come after a resume."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import iterate, label, seed_all
from own_samplers import (
    FORMS,
    KINDS,
    LENGTH,
    OPTIONS,
    BeginsAgain,
    Cuts,
    KeepsGlobal,
    Numbered,
    OfItsOwn,
    ReadsInIter,
    Yielded,
    forms_of,
    made,
    sampler_in,
)
from resuming import Indices, flattened, global_states, numbers, pairwise, quiet, set_global_states, through_json
from torch.utils.data import Sampler

import shmloader

pytestmark = [
    *quiet,
    pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict"),
    pytest.mark.filterwarnings("error:.* gave nothing after its state was loaded"),
]
PLACES = ["in the first epoch", "before the first batch", "in mid-epoch", "behind the last batch", "between two epochs"]


def check(kind: str, form: str, options: dict[str, Any], place: str, asks: bool) -> None:
    """What follows a place is the same in the run that was stopped there and in the resumed one.

    Args:
        kind: The sampler's.
        form: What makes batches of its indices.
        options: Other options of the loader.
        place: Where the state is saved.
        asks: Whether the loop saves states all along, and tells the resumed loader its epoch.
    """
    lacks_generator = isinstance(KINDS[kind](), OfItsOwn)
    if lacks_generator and place in ("before the first batch", "between two epochs"):
        return  # before a draw, its generator must be in its state: docs/resume.md
    seed_all()
    with made(KINDS[kind](), form, **options) as first:
        epoch, count = int(place != PLACES[0]), {PLACES[0]: 2, PLACES[2]: 1}.get(place, 0)
        if epoch:
            first.set_epoch(0)
            whole = numbers(iterate(first))
            count = len(whole) if place == "behind the last batch" else count
        if asks:
            first.state_dict()
        batches = None
        if place != "between two epochs":
            first.set_epoch(epoch)
            batches = iter(first)
        numbers([] if batches is None else batches, count)
        state, generators = first.state_dict(), global_states()
        assert (state["epoch"], state["batches"], state["begun"]) == (epoch, count, batches is not None)
        if batches is None:
            first.set_epoch(epoch)
        rest = numbers(iterate(first) if batches is None else batches)
        first.set_epoch(epoch + 1)
        following = numbers(iterate(first))
    before = copy.deepcopy(state := through_json(state))
    seed_all(8)
    with made(KINDS[kind](), form, **options) as again:
        set_global_states(generators)
        again.load_state_dict(state)
        assert through_json(again.state_dict()) == state
        if asks or batches is None:
            again.set_epoch(epoch)
        assert numbers(iterate(again)) == rest
        again.set_epoch(epoch + 1)
        if not (lacks_generator and asks):  # its generator would be a draw behind: docs/resume.md
            assert numbers(iterate(again)) == following
    assert state == before


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in forms_of(kind)])
def test_the_rest_and_the_next_epoch(kind: str, form: str) -> None:
    for at, place in enumerate(PLACES):
        check(kind, form, {"num_workers": 0}, place, asks=(at + len(form)) % 2 > 0)
    check(kind, form, {"device": "cpu", "on_device": copy.copy}, PLACES[2], False)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [1, 8])
@pytest.mark.parametrize("which", range(3))
def test_a_sampler_that_restores_a_global_generator(which: int, seed: int, workers: int) -> None:
    """Its rest is drawn from there, wherever that generator was before: at another place, or where the epoch began."""
    options = {"num_workers": workers}
    seed_all(1)
    with made(KeepsGlobal(which), "samples", **options) as first:
        batches = iter(first)
        numbers(batches, 3)
        state = through_json(first.state_dict())
        rest = numbers(batches)
    seed_all(seed)
    with made(KeepsGlobal(which), "samples", **options) as again:
        again.load_state_dict(state)
        assert numbers(iterate(again)) == rest


def with_workers() -> list[Any]:
    """Each two meet; with the options that others differ from, it is short."""
    others = ("random", "a random.Random", "a RandomState", "a Philox", "longer", "a buffer over random")
    kinds = [kind for kind in KINDS if kind not in others]
    axes = [kinds, list(FORMS), OPTIONS[1:], PLACES, [False, True]]

    def may_be(case: Any) -> bool:
        kind, form, options, *_ = case
        return form in forms_of(kind) and ("chunk_size" not in options or form not in ("samples", "batches of batches"))

    return [
        pytest.param(*case, marks=() if case[2] == OPTIONS[1] else pytest.mark.long) for case in pairwise(axes, may_be)
    ]


@pytest.mark.parametrize(("kind", "form", "options", "place", "asks"), with_workers(), ids=label)
def test_with_workers(kind: str, form: str, options: dict[str, Any], place: str, asks: bool) -> None:
    check(kind, form, options, place, asks)


WITH_WORKERS = ["torch's generator", "a pool", "starts over", "yielded", "restarting", "begins again", "cuts"]


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in KINDS), *((kind, 2) for kind in WITH_WORKERS)])
def test_whole_epochs_are_torchs(kind: str, workers: int) -> None:
    """torch's iterators with workers begin the sampler twice, and so do ours."""
    form = forms_of(kind)[-1]
    epochs: list[Any] = []
    starts: list[Any] = []
    for theirs in (True, False):
        seed_all()
        sampler, number = KINDS[kind](), workers
        if theirs and hasattr(sampler, "__next__"):
            number = 0  # with workers, torch asks it behind its end
        package = torch.utils.data if theirs else shmloader
        loader: Any = package.DataLoader(Indices(LENGTH), num_workers=number, **FORMS[form](sampler))
        epochs.append([])
        for epoch in range(3):
            if hasattr(sampler_in(loader), "set_epoch"):
                sampler_in(loader).set_epoch(epoch)
            epochs[-1].append(numbers(iterate(loader)))
        starts.append(getattr(sampler_in(loader), "starts", None))
        loader._iterator = None
    assert epochs[1] == epochs[0]
    assert starts in ([None, None], [3, 6 if workers else 3])


REPEATED = [kind for kind in KINDS if kind != "a buffer over random"]  # it draws in mid-epoch from a global generator


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in REPEATED for form in forms_of(kind)])
def test_saved_again_in_a_resumed_epoch(kind: str, form: str) -> None:
    """Before its first batch, when the sampler may return an older place; behind some; and where nothing is left."""

    def resumed(state: Any) -> Any:
        loader = made(KINDS[kind](), form, **({"batch_size": 3} if form == "batches" else {}))
        set_global_states(generators)
        loader.load_state_dict(state)
        return loader

    seed_all()
    batches = iter(first := made(KINDS[kind](), form))
    numbers(batches, 1)
    state, generators = through_json(first.state_dict()), global_states()
    places = [(1, state, flattened(numbers(batches)))]
    following = flattened(numbers(iterate(first)))
    for taken in (0, 1, 50, 0):
        count, state, rest = places[-1]
        taken = min(taken, len(numbers(resumed(state))))
        batches = iter(again := resumed(state))
        got = flattened(numbers(batches, taken))
        assert got == rest[: len(got)]
        places.append((count + taken, through_json(again.state_dict()), rest[len(got) :]))
    assert places[-1][2] == []
    for count, state, rest in places:
        assert (state["epoch"], state["batches"]) == (0, count)
        again = resumed(state)
        assert flattened(numbers(iterate(again))) == rest
        if not isinstance(KINDS[kind](), OfItsOwn):  # it may be a draw behind: docs/resume.md
            assert flattened(numbers(iterate(again))) == following


@pytest.mark.parametrize("asks", [False, True])
def test_saved_again_while_workers_are_ahead(asks: bool) -> None:
    """Before the first batch of a resumed epoch, when the sampler has drawn already."""
    with made(Yielded(), num_workers=1) as first:
        if asks:
            first.state_dict()
        numbers(iter(first), 1)
        state = through_json(first.state_dict())
    with made(Yielded(), num_workers=1) as again:
        again.load_state_dict(state)
        batches = iter(again)
        assert through_json(again.state_dict()) == state
        assert len(numbers(batches)) == len(first) - 1


@pytest.mark.parametrize("kind", [Numbered, BeginsAgain])
def test_the_samplers_own_set_epoch_counts_after_a_load(kind: Any) -> None:
    first = made(kind(), "samples")
    iterate(first)
    again = made(kind(), "samples")
    again.load_state_dict(first.state_dict())
    again.sampler.set_epoch(2)
    assert numbers(again) == [at * 7 % 10 for at in range(1, 11)]


@pytest.mark.parametrize("form", ["samples", "dropped"])
@pytest.mark.parametrize("kind", [Yielded, Cuts, Numbered, ReadsInIter])
@pytest.mark.parametrize("workers", [0, 2])
def test_persistent_workers_have_saved_it(workers: int, kind: Any, form: str) -> None:
    """The state then has their seed, so torch's iterator begins before the state is loaded into the sampler."""
    with made(kind(), form, num_workers=1, persistent_workers=True) as first:
        numbers(iterate(first))
        state = through_json(first.state_dict())
        expected = numbers(iterate(first))
    with made(kind(), form, num_workers=workers) as again:
        again.load_state_dict(state)
        assert numbers(iterate(again)) == expected


class Stuck(Yielded):
    """Stays at its end after a load."""

    def __iter__(self) -> Iterator[int]:
        return iter(()) if self.first else super().__iter__()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_that_stays_at_its_end(workers: int) -> None:
    with made(Stuck(), "samples", num_workers=workers) as first:
        iterate(first)
        state = first.state_dict()
    with made(Stuck(), "samples", num_workers=workers) as again, warnings.catch_warnings(record=True) as caught:
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

    loader = made(Empty(), "samples")
    iterate(loader)
    loader.load_state_dict(loader.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader) == []
    assert loader.sampler.starts == 2


class Raises(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        raise ValueError("no order")

    def __len__(self) -> int:
        return 4


def test_a_sampler_that_raises_has_ended_as_in_torch() -> None:
    """A loop that passes over errors must come to an end, also where the epoch was resumed."""
    loader, resumed = made(Raises()), made(Raises())
    iter(loader)
    resumed.load_state_dict(loader.state_dict())
    for iterator in iter(loader), iter(resumed):
        with pytest.raises(ValueError, match="no order"):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
