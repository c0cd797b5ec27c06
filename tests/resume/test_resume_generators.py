"""A state that was saved with a generator is for a loader with one, and the other way round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Augmented, assert_same, iterate
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

import shmloader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LENGTH = 22


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


FORMS: dict[str, Any] = {
    "shuffle": lambda g: {"batch_size": 4, "shuffle": True, "generator": g},
    "no shuffle": lambda g: {"batch_size": 4, "generator": g},
    "no batches": lambda g: {"batch_size": None, "shuffle": True, "generator": g},
    "random": lambda g: {"batch_size": 4, "sampler": RandomSampler(range(LENGTH), generator=g)},
    "weighted": lambda g: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * LENGTH, LENGTH, generator=g)},
    "subset": lambda g: {"batch_size": 4, "sampler": SubsetRandomSampler(range(LENGTH), generator=g)},
    "batches": lambda g: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH), generator=g), 4, False)},
    "both": lambda g: {
        "batch_size": 4,
        "sampler": RandomSampler(range(LENGTH), generator=g),
        "generator": generator(6),
    },
}


def made(form: str, g: Any, **options: Any) -> Any:
    return shmloader.DataLoader(Augmented(LENGTH), **FORMS[form](g), **options)


@pytest.mark.parametrize("at", ["fresh", "in the midst", "between"])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_one_with_and_one_without_are_refused(form: str, saved: bool, at: str) -> None:
    with made(form, generator() if saved else None) as first:
        if at != "fresh":
            batches = iter(first)
            next(batches)
            if at != "in the midst":
                list(batches)
        state = first.state_dict()
    loader = made(form, None if saved else generator())
    before = loader.state_dict()
    says = "it has the state of a generator, and" if saved else ".* has a generator now, and the state has none"
    with pytest.raises(ValueError, match=f"this state cannot be loaded: {says}.*the order would differ"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    made(form, generator(9) if saved else None).load_state_dict(state)


class Lazy(RandomSampler):
    """Makes its generator when it is iterated over, as accelerate's does."""

    def __iter__(self) -> Any:
        if self.generator is None:
            self.generator = generator(3)
        yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:the sampler .* has no state_dict")
def test_a_sampler_that_makes_its_generator_late_goes_on(workers: int) -> None:
    def lazy() -> Any:
        return shmloader.DataLoader(Augmented(LENGTH), 4, sampler=Lazy(range(LENGTH)), num_workers=workers)

    with lazy() as first:
        batches = iter(first)
        next(batches)
        state = first.state_dict()
        rest = list(batches)
    with lazy() as again:
        again.load_state_dict(state)
        assert_same([batch["i"] for batch in iterate(again)], [batch["i"] for batch in rest])
