"""A user's loader, dataset, samplers, functions, generator and context are known by identity: nothing hashes or
compares them, or asks whether they are true."""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings
from multiprocessing.context import ForkContext
from typing import Any

import pytest
import torch
import torch.utils.data as data
from conftest import assert_same, iterate

import shmloader


class Unlike:
    """Whoever compares one, hashes it or asks whether it is true gets an error."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError(f"a {type(self).__name__} was compared with {other!r}")

    __ne__ = __eq__

    def __hash__(self) -> int:
        raise AssertionError(f"a {type(self).__name__} was hashed")

    def __bool__(self) -> bool:
        raise AssertionError(f"a {type(self).__name__} was asked whether it is true")


class Tens(Unlike, data.Dataset):
    epoch = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(k)), k + 100 * self.epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Stream(Unlike, data.IterableDataset):
    def __iter__(self) -> Any:
        yield from range(6)


class Order(Unlike, data.Sampler):
    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        yield from reversed(range(10))


class Drawn(Unlike, data.RandomSampler):
    pass


class Batches(Unlike, data.BatchSampler):
    pass


class Collate(Unlike):
    def __call__(self, samples: Any) -> Any:
        return data.default_collate(samples)


class Init(Unlike):
    def __call__(self, worker: int) -> None:
        torch.manual_seed(worker)


class Moved(Unlike):
    def __call__(self, batch: Any) -> Any:
        return batch


class Tenth(Unlike):
    def __call__(self, index: int) -> int:
        return index // 10


class Generator(Unlike, torch.Generator):
    pass


class Context(Unlike, ForkContext):
    pass


class Ours(Unlike, shmloader.DataLoader):
    pass


class Theirs(Unlike, data.DataLoader):
    pass


@dataclasses.dataclass
class Labelled(shmloader.DataLoader):
    """`dataclass` gives it an `==`, and takes its hash away."""

    label: str

    def __post_init__(self) -> None:
        super().__init__(Tens(), batch_size=3, num_workers=2)


FORMS = {
    "sampler": lambda: {"sampler": Order()},
    "random": lambda: {"sampler": Drawn(Tens(), generator=Generator())},
    "batch sampler": lambda: {"batch_sampler": Batches(Order(), 4, False)},
    "generator": lambda: {"generator": Generator(), "shuffle": True},
    "drops all": lambda: {"batch_size": 64, "drop_last": True},
    "functions": lambda: {"collate_fn": Collate(), "batch_size": 2},
    "stream": lambda: {"dataset": Stream(), "batch_size": 2, "collate_fn": Collate()},
}
WITH_WORKERS = {
    "init": lambda: {"worker_init_fn": Init(), "shuffle": True},
    "context": lambda: {"multiprocessing_context": Context(), "shuffle": True},
    "persistent": lambda: {"persistent_workers": True, "collate_fn": Collate()},
}
OPTIONS = {
    "device": lambda: {"device": "cpu", "on_device": Moved()},
    "steal": lambda: {"schedule": "steal", "persistent_workers": True},
    "chunks": lambda: {"chunk_size": 2, "batch_size": 4},
    "places": lambda: {"group_by": Tenth(), "batch_size": 4},
    "skip": lambda: {"on_bad_sample": "skip", "collate_fn": Collate(), "sampler": Order()},
    "respawn": lambda: {"on_worker_death": "respawn", "worker_init_fn": Init()},
}


def epochs(kind: Any, given: dict[str, Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        given = {"dataset": Tens(), **given}
        loader = kind(given.pop("dataset"), **given)
        found = [iterate(loader), iterate(loader)]
        for _ in zip(range(1), loader, strict=False):
            pass
        found.append(iterate(copy.copy(loader)))
    return found


@pytest.mark.parametrize(("form", "workers"), [*((form, 2) for form in FORMS), ("random", 0), ("stream", 0)])
def test_forms_of_both_loaders(form: str, workers: int) -> None:
    ours, theirs = (epochs(kind, {"num_workers": workers, **FORMS[form]()}) for kind in (Ours, Theirs))
    assert_same(ours, theirs)


@pytest.mark.parametrize("form", WITH_WORKERS)
def test_forms_with_workers(form: str) -> None:
    ours, theirs = (epochs(kind, {"num_workers": 2, **WITH_WORKERS[form]()}) for kind in (Ours, Theirs))
    assert_same(ours, theirs)


@pytest.mark.filterwarnings("ignore:the (sampler Order|dataset Stream) has no state_dict")
@pytest.mark.parametrize("form", [*FORMS, *OPTIONS])
def test_options_states_and_reports_of_ours(form: str) -> None:
    given = {"dataset": Tens(), **{**FORMS, **OPTIONS}[form]()}
    if form in ("stream", "drops all"):
        given["batch_size"] = 1
    loader = Ours(num_workers=2, **given)
    if form != "stream":
        loader.set_epoch(1)
    half = iter(loader)
    next(half)
    state = loader.state_dict()
    rest = list(half)
    loader.load_state_dict(state)
    assert_same(list(loader), rest)
    assert rest and loader.rides_ring and loader.why_not_ring() is None
    assert str(loader.report()) and loader.stats().batches
    loader.close()


def test_a_dataclass() -> None:
    loader = Labelled("a")
    assert loader == Labelled("a")
    assert len(list(loader)) == len(list(loader)) == 4
    del loader
    gc.collect()


def test_a_loader_of_torchs_over_the_same_dataset() -> None:
    """It is compared with what our loaders were given, to find out whether it was built from one of them."""
    dataset, collate = Tens(), Collate()
    kept = [Ours(dataset, num_workers=2, collate_fn=collate, device="cpu", on_device=Moved()) for _ in range(2)]
    with pytest.warns(RuntimeWarning, match="reads the dataset of a shmloader"):
        assert len(iterate(data.DataLoader(dataset, collate_fn=collate, num_workers=2))) == 10
    assert len(kept) == 2


def test_a_method_is_the_same_function_each_time() -> None:
    """Each look at a method gives another object, so it is known by its function and by the object that it is of."""

    class Model:
        def collate(self, samples: Any) -> Any:
            return data.default_collate(samples)

    model, dataset = Model(), Tens()
    kept = shmloader.DataLoader(dataset, num_workers=2, collate_fn=model.collate)
    with pytest.warns(RuntimeWarning, match="reads the dataset of a shmloader"):
        iterate(data.DataLoader(dataset, collate_fn=model.collate, num_workers=2))
    assert kept.rides_ring
