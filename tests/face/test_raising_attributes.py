"""Attributes that raise until something is set up: where only we look them up, they count as absent.

What torch's loader looks up as well (`__getitems__`, `__len__`) raises as it does there.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import label
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
)

import shmloader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:.*same order again"),
    pytest.mark.filterwarnings("ignore:.*has no state_dict"),
]
LENGTH = 4

OF_SAMPLERS = (
    *("generator", "sampler", "batch_sampler", "num_processes", "process_index", "state_dict", "load_state_dict"),
    *("set_epoch", "epoch", "shuffle", "replacement", "indices", "_sampler", "batch_size", "__func__"),
)
OF_DATASETS = (
    *("set_epoch", "state_dict", "load_state_dict", "thread_safe", "aclose", "row_spec", "dataset", "datasets"),
    *("__place__", "__prefetch__", "__getitem_into__", "sampler", "batch_sampler", "_sampler"),
)
OF_FUNCTIONS = ("_shmloader_row_wise", "__wrapped__", "__self__", "__func__")


class SetUpFirst(Exception):
    """A user's own."""


def endless(of: Any) -> Any:
    return endless(of)


RAISES: dict[str, Callable[[str], Any]] = {
    kind.__name__: lambda name, kind=kind: (_ for _ in ()).throw(kind(name))
    for kind in (RuntimeError, KeyError, AttributeError, TypeError, NotImplementedError, AssertionError, SetUpFirst)
}
RAISES |= {"StopIteration": lambda name: next(iter(())), "RecursionError": endless}


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return Reader()


class Reader:
    def __init__(self) -> None:
        info = torch.utils.data.get_worker_info()
        self.left = list(range(LENGTH))[:: -1 if info is None else -info.num_workers]

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


class Order:
    """A sampler that is none of torch's classes."""

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        return iter([(3 * k) % LENGTH for k in range(LENGTH)])


class Ranked(DistributedSampler[Any]):
    def __init__(self) -> None:
        super().__init__(range(2 * LENGTH), 2, 1)  # type: ignore[arg-type]


class Batches:
    def __len__(self) -> int:
        return LENGTH // 2

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[k, k + 1] for k in range(0, LENGTH, 2)])


class Wrapper(Order):
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler


class Collate:
    def __call__(self, samples: list[Any]) -> Any:
        return torch.stack(list(map(torch.as_tensor, samples)))


# How a loader gets the object that raises: its base class, the names that we look up there, and the loader's arguments.
PLACES: dict[str, tuple[type, tuple[str, ...], Callable[[Any], dict[str, Any]]]] = {
    "sampler": (Order, OF_SAMPLERS, lambda it: {"sampler": it, "batch_size": 2}),
    "sampler without batches": (Order, OF_SAMPLERS, lambda it: {"sampler": it, "batch_size": None}),
    "inside a sampler": (Order, OF_SAMPLERS, lambda it: {"sampler": Wrapper(it), "batch_size": 2}),
    "batch sampler": (Batches, OF_SAMPLERS, lambda it: {"batch_sampler": it}),
    "inside a batch sampler": (Order, OF_SAMPLERS, lambda it: {"batch_sampler": BatchSampler(it, 2, False)}),
    "of several ranks": (
        Ranked,
        tuple(name for name in OF_SAMPLERS if name not in ("epoch", "shuffle", "set_epoch")),  # its own
        lambda it: {"dataset": range(2 * LENGTH), "sampler": it, "batch_size": 2},
    ),
    "dataset": (Numbers, OF_DATASETS, lambda it: {"dataset": it, "batch_size": 2}),
    "inside a Subset": (Numbers, OF_DATASETS, lambda it: {"dataset": Subset(it, [3, 1]), "batch_size": 2}),
    "inside a ConcatDataset": (Numbers, OF_DATASETS, lambda it: {"dataset": ConcatDataset([it]), "batch_size": 2}),
    "stream": (Stream, OF_DATASETS, lambda it: {"dataset": it, "batch_size": 2}),
    "iterator": (Reader, OF_DATASETS, lambda it: {"dataset": Around(it), "batch_size": 2}),
    "collate function": (Collate, OF_FUNCTIONS, lambda it: {"collate_fn": it, "batch_size": 2}),
}


class Around(IterableDataset[Any]):
    """A stream whose iterator is made by this class."""

    def __init__(self, made: Any) -> None:
        self.kind = type(made)

    def __iter__(self) -> Any:
        return self.kind()


def by_property(base: type, names: tuple[str, ...], raises: Callable[[str], Any]) -> Any:
    """An object on which these names are properties that raise."""
    return type(base.__name__, (base,), {name: property(lambda self, name=name: raises(name)) for name in names})()


def by_getattr(base: type, names: tuple[str, ...], raises: Callable[[str], Any]) -> Any:
    """An object whose `__getattr__` raises for all that it lacks; for torch's own questions as it should."""

    def missing(self: Any, name: str) -> Any:
        if name in names or not (name.startswith("__") or _asked_by_torch()):
            raises(name)
        raise AttributeError(name)

    return type(base.__name__, (base,), {"__getattr__": missing})()


def by_getattribute(base: type, names: tuple[str, ...], raises: Callable[[str], Any]) -> Any:
    def found(self: Any, name: str) -> Any:
        return raises(name) if name in names else object.__getattribute__(self, name)

    return type(base.__name__, (base,), {"__getattribute__": found})()


def _asked_by_torch() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch")


WAYS = {"property": by_property, "__getattr__": by_getattr, "__getattribute__": by_getattribute}


def seen(loader: Any) -> list[Any]:
    """Two epochs, with all that a user may ask in them."""
    torch.manual_seed(0)
    got = []
    for epoch in range(2):
        for batch in loader:
            got.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        got.append("end")
        if isinstance(loader, shmloader.DataLoader):
            state = loader.state_dict()
            loader.set_epoch(epoch + 1)
        elif isinstance(loader.sampler, Ranked):
            loader.sampler.set_epoch(epoch + 1)
    if isinstance(loader, shmloader.DataLoader):
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(loader.state_dict())
        loader.load_state_dict(state)
    return got


def arguments(place: str, way: str, names: tuple[str, ...], raises: Callable[[str], Any]) -> dict[str, Any]:
    base, _, give = PLACES[place]
    return {"dataset": Numbers(), **give(WAYS[way](base, names, raises))}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore:.*is dropped. To resume")
def test_each_name_that_raises_counts_as_absent(place: str) -> None:
    """Each name with some exceptions and ways to raise, in turn, and with an AttributeError; without workers."""
    base, names, give = PLACES[place]
    wanted = seen(DataLoader(**{"dataset": Numbers(), **give(base())}))
    kinds, ways = [kind for kind in RAISES if kind != "AttributeError"], list(WAYS)
    for k, name in enumerate(names):
        for way, kind in ("property", kinds[k % 8]), (ways[k % 3], "KeyError"), (ways[(k + 1) % 3], "AttributeError"):
            if way == "__getattribute__" and hasattr(base, name):
                continue  # torch needs it
            loader = shmloader.DataLoader(**arguments(place, way, (name,), RAISES[kind]))
            assert seen(loader) == wanted, (name, way, kind)


WITH_WORKERS: list[Any] = [
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "schedule": "steal", "on_bad_sample": "skip"},
    {"num_workers": 2, "chunk_size": 1},
    {"num_workers": 2, "look_ahead": 2, "device": "cpu"},
]
OF_EACH = [(place, WITH_WORKERS[0], list(WAYS)[k % 3]) for k, place in enumerate(PLACES)]
OF_EACH += [
    (place, options, list(WAYS)[k % 3])
    for place in ("sampler", "dataset")
    for k, options in enumerate(WITH_WORKERS[1:])
]


@pytest.mark.parametrize(("place", "options", "way"), OF_EACH, ids=label)
@pytest.mark.filterwarnings("ignore:.*is dropped. To resume")
def test_all_names_raise_at_once(place: str, options: dict[str, Any], way: str) -> None:
    base, names, give = PLACES[place]
    wanted = seen(DataLoader(**{"dataset": Numbers(), **give(base()), "num_workers": 2}))
    at_once = tuple(name for name in names if way != "__getattribute__" or not hasattr(base, name))
    with shmloader.DataLoader(**arguments(place, way, at_once, RAISES["KeyError"]), **options) as loader:
        assert seen(loader) == wanted


@pytest.mark.parametrize("place", PLACES)
def test_the_matrix_has_all_that_is_looked_up(place: str) -> None:
    """A spy notes each name that our code looks up and does not find."""
    base, names, give = PLACES[place]
    found: set[str] = set()

    def missing(self: Any, name: str) -> Any:
        asks = str(sys._getframe(1).f_globals.get("__name__"))
        if asks.startswith("shmloader"):
            found.add(name)
        raise AttributeError(name)

    spy = type(base.__name__, (base,), {"__getattr__": missing})()
    seen(shmloader.DataLoader(**{"dataset": Numbers(), **give(spy)}))
    assert found - {"__getitems__"} <= {*names, *vars(base)}


# ------------------------------------------------------------------------------------------------------ delegation


class Inner(Order):
    def __init__(self) -> None:
        self.at, self.epochs = 0, list[int]()

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        while self.at < LENGTH:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ByGetattr(Order):
    """Passes on by `__getattr__`, also before it has what it passes on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class ByProperties(Order):
    """Passes on by properties, which raise until it is set up."""

    inner: Any = None

    def __init__(self, inner: Any) -> None:
        self.later = inner

    def __iter__(self) -> Iterator[int]:
        self.inner = self.later
        return iter(self.inner)

    @property
    def set_epoch(self) -> Any:
        return self.get().set_epoch

    @property
    def state_dict(self) -> Any:
        return self.get().state_dict

    @property
    def load_state_dict(self) -> Any:
        return self.later.load_state_dict

    def get(self) -> Any:
        if self.inner is None:
            raise SetUpFirst
        return self.inner


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [ByGetattr, ByProperties])
def test_what_is_passed_on_is_found(kind: Any, workers: int) -> None:
    inner = Inner()
    with shmloader.DataLoader(Numbers(), 2, sampler=kind(inner), num_workers=workers) as first:
        assert len(list(first)) == LENGTH // 2
        batches = iter(first)
        got = [next(batches).tolist()]
        state = first.state_dict()
        got += [batch.tolist() for batch in batches]
        first.set_epoch(3)
        assert inner.epochs == [3]
    again = shmloader.DataLoader(Numbers(), 2, sampler=kind(Inner()), num_workers=workers)
    with again:
        assert len(list(again)) == LENGTH // 2
        again.load_state_dict(state)
        assert state["sampler_state"] is not None
        assert [batch.tolist() for batch in again] == got[1:]


class Outer(Numbers):
    """Passes a dataset's set_epoch on, once it is there."""

    inner: Any = None

    @property
    def set_epoch(self) -> Any:
        return self.inner.set_epoch


class Counts(Numbers):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_datasets_set_epoch_is_found_once_it_is_there() -> None:
    dataset = Outer()
    loader = shmloader.DataLoader(dataset, 2)
    loader.set_epoch(3)
    assert len(list(loader)) == LENGTH // 2
    dataset.inner = Counts()
    loader.set_epoch(4)
    assert dataset.inner.epoch == 4


# --------------------------------------------------------------------------------------------------------- signals


class TimeIsUp(Exception):
    pass


class Interrupted(Order):
    """A signal comes while one of its attributes is looked up, and its handler raises there."""

    name = ""

    def __getattr__(self, name: str) -> Any:
        if name == self.name:
            signal.raise_signal(signal.SIGUSR1)
            time.sleep(0)  # the handler has run by then
        raise KeyError(name)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("generator", TimeIsUp),
        ("sampler", AttributeError),
        ("batch_sampler", KeyError),
        ("process_index", KeyboardInterrupt),
        ("state_dict", TimeIsUp),
        ("set_epoch", AttributeError),
    ],
)
def test_a_handlers_exception_comes_through(name: str, error: Any) -> None:
    def handler(number: int, frame: Any) -> None:
        raise error("time is up")

    sampler = Interrupted()
    loader = shmloader.DataLoader(Numbers(), 2, sampler=sampler)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        sampler.name = name
        with pytest.raises(error, match="time is up"):
            for _ in loader:
                pass
            loader.set_epoch(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    sampler.name = ""
    assert len(list(loader)) == LENGTH // 2
