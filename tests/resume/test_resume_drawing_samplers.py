"""Samplers of one's own that draw random numbers: in their `__iter__`, at once, or when they are asked for an index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from resuming import quiet, through_json
from torch.utils.data import Sampler

import shmloader

pytestmark = [
    *quiet,
    pytest.mark.filterwarnings("ignore:.*same order"),
]
LENGTH = 6


class AtOnce(Sampler[Any]):
    """Draws in its `__iter__`, which is no generator."""

    def __init__(self, generator: torch.Generator | None, size: int = 0) -> None:
        self.generator, self.size = generator, size

    def __len__(self) -> int:
        return LENGTH // (self.size or 1)

    def order(self) -> list[Any]:
        drawn = torch.randperm(LENGTH, generator=self.generator)
        return drawn.view(-1, self.size).tolist() if self.size else drawn.tolist()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.order())


class Lazy(AtOnce):
    """Draws when it is asked for the first index."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.order()


def made(kind: Any, form: str, generators: str, workers: int = 0, **more: Any) -> Any:
    """A loader whose batches are made as `form` says; a generator is the sampler's, the loader's, or both share one."""
    own, loaders = (torch.Generator().manual_seed(seed) for seed in (5, 6))
    own = loaders if generators == "shared" else own
    options: dict[str, Any] = {"num_workers": workers, **more}
    if generators in ("loader's", "both", "shared"):
        options["generator"] = loaders
    of_sampler = own if generators in ("own", "both", "shared") else None
    if form == "batch_sampler":
        return shmloader.DataLoader(range(LENGTH), batch_sampler=kind(of_sampler, 2), **options)
    return shmloader.DataLoader(range(LENGTH), FORMS[form], sampler=kind(of_sampler), **options)


def run(batches: Any) -> list[list[int]]:
    return [torch.as_tensor(batch).reshape(-1).tolist() for batch in batches]


def check(first: Any, again: Any, taken: int) -> None:
    """The rest of the epoch, and the two after it, are those of the loader that was not interrupted."""
    torch.manual_seed(0)
    with first, again:
        run(first)
        batches = iter(first)
        for _ in range(taken):
            next(batches)
        state, of_global = through_json(first.state_dict()), torch.get_rng_state()
        wanted = [run(batches), run(first), run(first)]
        torch.manual_seed(99)
        again.load_state_dict(state)
        torch.set_rng_state(of_global)
        assert [run(again) for _ in range(3)] == wanted


FORMS = {"no batches": None, "batches": 2, "batch_sampler": 1}
GENERATORS = ["none", "own", "loader's", "both", "shared"]


@pytest.mark.parametrize("generators", GENERATORS)
@pytest.mark.parametrize("kind", [AtOnce, Lazy])
def test_the_rest_of_an_epoch_and_those_after_it(kind: Any, generators: str) -> None:
    for form, taken in itertools.product(FORMS, (0, 1, 3)):
        check(made(kind, form, generators), made(kind, form, generators), taken)


def test_a_state_saved_again_before_the_first_batch_says_what_was_drawn() -> None:
    """With workers the seed of a RandomSampler is drawn in iter(), and must not be drawn again later."""

    def shuffled(workers: int) -> Any:
        return shmloader.DataLoader(range(LENGTH), 2, shuffle=True, num_workers=workers)

    torch.manual_seed(0)
    with shuffled(2) as first:
        iter(first)
        state = first.state_dict()
    of_global = torch.get_rng_state()
    wanted, again = shuffled(0), shuffled(0)
    wanted.load_state_dict(state)
    iter(wanted)
    again.load_state_dict(wanted.state_dict())
    wanted.load_state_dict(state)
    expected = [run(wanted) for _ in range(3)]
    torch.set_rng_state(of_global)
    assert [run(again) for _ in range(3)] == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [AtOnce, Lazy])
def test_a_global_generator_that_was_not_restored_stays_as_it_is(kind: Any, form: str) -> None:
    first, again = made(kind, form, "none"), made(kind, form, "none")
    torch.manual_seed(0)
    batches = iter(first)
    again.load_state_dict(through_json(first.state_dict()))
    wanted = run(batches)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert run(again) == wanted
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("form", "generators"), [*zip(itertools.cycle(FORMS), GENERATORS, strict=False)])
@pytest.mark.parametrize("kind", [AtOnce, pytest.param(Lazy, marks=pytest.mark.long)])
def test_with_workers(kind: Any, form: str, generators: str) -> None:
    check(made(kind, form, generators, 2), made(kind, form, generators, 2), 1)


@pytest.mark.parametrize("form", FORMS)
def test_from_between_two_epochs_of_workers_that_persist(form: str) -> None:
    """The state has their seed, so the draws of the first iter() are undone, and the sampler is asked once more."""
    first, again = made(AtOnce, form, "own", 2, persistent_workers=True), made(AtOnce, form, "own")
    with first:
        run(first)
        again.load_state_dict(first.state_dict())
        generator = torch.Generator()
        generator.set_state(sampler_of(first).generator.get_state())
    wanted = [torch.randperm(LENGTH, generator=generator).tolist() for _ in range(2)]
    assert [[index for batch in run(again) for index in batch] for _ in range(2)] == wanted


def sampler_of(loader: Any) -> Any:
    return loader.batch_sampler if isinstance(loader.batch_sampler, AtOnce) else loader.sampler
