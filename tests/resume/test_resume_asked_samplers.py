"""When a sampler's state_dict() is called, what a state has that was saved before, and what becomes of its errors."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy
import pytest
import torch
from conftest import iterate, label, seed_all
from own_samplers import (
    LENGTH,
    OPTIONS,
    ModuleSampler,
    ModuleWithState,
    OfNumpy,
    OfRandom,
    Own,
    Pool,
    Stub,
    StubAtOnce,
    StubOfTorchs,
    made,
)
from resuming import Indices, numbers, quiet, through_json
from torch.utils.data import DataLoader

from shmloader.system import user_line

pytestmark = quiet
NO_WORKERS, WORKERS, PERSISTENT, STEAL, CHUNKS, ONE, DEVICE = OPTIONS


def cases(short: list[Any], long: list[Any]) -> list[Any]:
    found = [pytest.param(*case, id="-".join(map(label, case))) for case in short]
    return found + [pytest.param(*case, id="-".join(map(label, case)), marks=pytest.mark.long) for case in long]


@pytest.mark.parametrize("kind", [OfRandom, OfNumpy, Own])
def test_global_generators_are_as_they_were_after_a_resume(kind: Any) -> None:
    first, again = made(kind()), made(kind())
    next(iter(first))
    again.load_state_dict(through_json(first.state_dict()))
    seed_all()
    wanted = random.random(), numpy.random.rand(), torch.rand(()).item()
    seed_all()
    iter(again)
    assert (random.random(), numpy.random.rand(), torch.rand(()).item()) == wanted


@pytest.mark.parametrize("kind", [OfRandom, OfNumpy, Own])
def test_a_loop_that_seeds_again(kind: Any) -> None:
    """The generators are then as they were at the start, although the sampler has drawn from them."""
    seed_all(1)
    batches = iter(first := made(kind()))
    next(batches)
    seed_all(1)
    state, rest = through_json(first.state_dict()), numbers(batches)
    again = made(kind())
    seed_all(2)
    again.load_state_dict(state)
    assert numbers(again) == rest


# --------------------------------------------------------------------------------------------------- how often it is


@pytest.mark.parametrize(
    ("form", "options"),
    cases(
        [("samples", NO_WORKERS), ("batches", NO_WORKERS), ("batches", WORKERS), ("batches", STEAL)],
        [("samples", PERSISTENT), ("batches", CHUNKS), ("samples", ONE), ("batches", DEVICE)],
    ),
)
def test_it_is_asked_once_an_epoch_until_somebody_saves(form: str, options: dict[str, Any]) -> None:
    sampler = Pool()
    batches_in_all = LENGTH if form == "samples" else 3
    with made(sampler, form, **options) as loader:
        for _ in range(2):
            assert len(numbers(iterate(loader))) == batches_in_all
        assert sampler.asked == 2
        batches = iter(loader)
        next(batches)
        assert sampler.asked == 3
        loader.state_dict()
        assert sampler.asked == 3
        numbers(batches)
        before = sampler.asked
        numbers(iterate(loader))
        assert sampler.asked - before >= batches_in_all


def test_other_loaders_do_not_ask() -> None:
    one, other = made(Pool()), made(sampler := Pool())
    one.state_dict()
    numbers(iterate(other))
    assert sampler.asked == 1


# ------------------------------------------------------------------------------------------------------- its errors


class CannotBePickled(Own):
    def state_dict(self) -> dict[str, Any]:
        return {"of": (i for i in range(2))}


class Fails(Own):
    def state_dict(self) -> dict[str, Any]:
        raise LookupError("there is no state yet")


ERRORS = {
    CannotBePickled: ((RuntimeError, TypeError), "generator"),
    Fails: (LookupError, "there is no state yet"),
}


@pytest.mark.parametrize(
    ("kind", "options"),
    cases(
        [
            *((kind, NO_WORKERS) for kind in (Stub, StubAtOnce, StubOfTorchs, *ERRORS)),
            *((kind, WORKERS) for kind in (StubAtOnce, StubOfTorchs, Fails)),
        ],
        [(Fails, PERSISTENT), (StubAtOnce, STEAL), (Fails, CHUNKS), (StubAtOnce, ONE), (Fails, DEVICE)],
    ),
)
def test_epochs_are_torchs(kind: Any, options: dict[str, Any]) -> None:
    """Also in a loop that asks for a state at each batch, and passes over its errors."""
    workers = {name: options[name] for name in ("num_workers", "persistent_workers") if name in options}
    theirs: Any = DataLoader(Indices(LENGTH), sampler=kind(), batch_size=4, **workers)  # type: ignore[arg-type]
    seed_all()
    wanted = [numbers(iterate(theirs)) for _ in range(3)]
    theirs._iterator = None
    for asks in False, True:
        seed_all()
        with made(kind(), **options) as loader:
            got = []
            for _ in range(3):
                got.append([])
                for batch in loader:
                    got[-1] += numbers([batch])
                    if asks and kind in ERRORS:
                        with pytest.raises(ERRORS[kind][0], match=ERRORS[kind][1]):
                            loader.state_dict()
                    elif asks:
                        loader.state_dict()
        assert got == wanted


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in ERRORS), (Fails, 2)])
def test_its_error_is_raised_by_state_dict(kind: Any, workers: int) -> None:
    with made(kind(), num_workers=workers) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
            with pytest.raises(ERRORS[kind][0], match=ERRORS[kind][1]) as raised:
                loader.state_dict()
            frames = len(raised.traceback)
            with pytest.raises(ERRORS[kind][0]) as raised:
                loader.state_dict()
            assert len(raised.traceback) == frames  # it does not grow
        assert len(numbers(batches)) == 1


class FailsWithin(Pool):
    """Has a state only before an epoch; or only within one."""

    within = True

    def state_dict(self) -> dict[str, Any]:
        if self.within == (0 < len(self.left) < LENGTH):
            raise LookupError("there is no state here")
        return super().state_dict()


class FailsBefore(FailsWithin):
    within = False


class StubWithin(Pool):
    """It has a state at the beginning, from which the loader draws again."""

    def state_dict(self) -> dict[str, Any]:
        if 0 < len(self.left) < LENGTH:
            raise NotImplementedError
        return super().state_dict()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_belongs_to_its_place(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 3, "num_workers": workers, "prefetch_factor": 1 if workers else None}
    with made(FailsWithin(), **options) as loader:
        batches = iter(loader)
        next(batches)
        assert loader.state_dict()["batches"] == 1  # the first state needs only that of the beginning
        next(batches)
        next(batches)
        with pytest.raises(LookupError, match="no state here"):
            loader.state_dict()
        assert len(numbers(batches)) == 1
        assert loader.state_dict()["epoch"] == 1
    with made(FailsBefore(), **options) as loader:
        with pytest.raises(LookupError, match="no state here"):
            loader.state_dict()
        batches = iter(loader)
        with pytest.raises(LookupError, match="no state here"):
            loader.state_dict()
        next(batches)
        state, rest = through_json(loader.state_dict()), numbers(batches)
    again = made(FailsBefore(), batch_size=3)
    again.load_state_dict(state)
    assert numbers(again) == rest


@pytest.mark.parametrize("asks", [False, True])
def test_without_a_state_in_mid_epoch_it_draws_again(asks: bool) -> None:
    first = made(StubWithin())
    if asks:
        first.state_dict()
    batches = iter(first)
    numbers(batches, 2)
    state, rest = through_json(first.state_dict()), numbers(batches)
    again = made(StubWithin())
    again.load_state_dict(state)
    batches = iter(again)
    assert numbers(batches, 1)[0] == rest[0]
    state = through_json(again.state_dict())  # which counts from the epoch's start, too
    assert numbers(batches) == rest[1:]
    third = made(StubWithin())
    third.load_state_dict(state)
    assert numbers(third) == rest[1:]


@pytest.mark.parametrize(
    ("kind", "options"),
    cases(
        [(Stub, NO_WORKERS), (StubAtOnce, NO_WORKERS), (StubOfTorchs, NO_WORKERS), (StubAtOnce, WORKERS)],
        [(Stub, PERSISTENT), (StubAtOnce, STEAL), (StubOfTorchs, DEVICE)],
    ),
)
def test_not_implemented_counts_as_no_state(kind: Any, options: dict[str, Any]) -> None:
    for form, after in ("batches", 0), ("batches", 2), ("samples", 1):
        seed_all()
        with made(kind(), form, **options) as first:
            batches = iter(first)
            numbers(batches, after)
            state = through_json(first.state_dict())
            assert state["sampler_state"] is None and state["rank"] is None
            rest = numbers(batches)
        with made(kind(), form, **options) as again, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            user_line._met.clear()
            again.load_state_dict(state)
            assert numbers(iterate(again)) == rest
        guessed = [str(each.message) for each in caught if "right only if it gives the same order" in str(each.message)]
        assert len(guessed) == (after > 0 and kind is not StubOfTorchs)


def test_between_epochs_a_stub_has_no_state() -> None:
    loader = made(Stub())
    for _ in range(2):
        state = through_json(loader.state_dict())
        assert state["sampler_state"] is None and state["rank"] is None
        again = made(Stub())
        again.load_state_dict(state)
        assert len(numbers(again)) == 3
        iterate(loader)


# -------------------------------------------------------------------------------------------------------- nn.Module


@pytest.mark.filterwarnings("ignore:.*same order")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [ModuleSampler, ModuleWithState])
def test_a_module_as_sampler(kind: Any, workers: int) -> None:
    wanted = numbers(DataLoader(Indices(LENGTH), 4, sampler=ModuleSampler()))  # type: ignore[arg-type]
    for after in 0, 1, 2:
        with made(kind(), num_workers=workers) as first:
            got = numbers(batches := iter(first), after)
            state = through_json(first.state_dict())
            assert (state["sampler_state"] is not None) == (kind is ModuleWithState)
            assert got + numbers(batches) == wanted
        with made(kind(), num_workers=workers) as again:
            again.load_state_dict(state)
            assert got + numbers(iterate(again)) == wanted
            assert numbers(iterate(again)) == wanted
