"""Streams of the user's own, each of which keeps its place in another way, or has none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from own_samplers import Restarting
from torch.utils.data import IterableDataset, get_worker_info

import shmloader

LENGTH = 26


class Plain(IterableDataset[int]):
    """A worker's numbers.  It does not say where it is.  Worker 1 has fewer, so that parts are not equally long."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length, self.at, self.made, self.epoch = length, 0, 0, 0

    def part(self) -> list[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return list(range(first, self.length - 6 * (first % 2), step))

    def __iter__(self) -> Iterator[int]:
        return iter(self.part())


class Restarts(Plain):
    """Its iterator gives the numbers again from the beginning after each iter()."""

    def __iter__(self) -> Iterator[int]:
        numbers = Restarting()
        numbers.given = self.part()
        return iter(numbers)


class Numbers(Plain):
    """It says where it is, in an attribute, and counts the samples that it has made."""

    def __iter__(self) -> Iterator[int]:
        numbers = self.part()
        while self.at < len(numbers):
            self.at += 1
            self.made += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Place:
    """An iterator that says where it is, and of which order; epoch 0 is not shuffled."""

    def __init__(self, numbers: list[int], epoch: int = 0) -> None:
        self.numbers, self.epoch, self.at = numbers, epoch, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        order = shuffled(self.numbers, self.epoch)
        if self.at >= len(order):
            raise StopIteration
        self.at += 1
        return order[self.at - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def shuffled(numbers: list[int], epoch: int) -> list[int]:
    return random.Random(epoch).sample(numbers, len(numbers)) if epoch else numbers


class OfPlaces(Plain):
    def __iter__(self) -> Iterator[int]:
        return Place(self.part())


class Counting(Numbers):
    """It counts its epochs at their end, and each has an order of its own."""

    def part(self) -> list[int]:
        return shuffled(super().part(), self.epoch)

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Hers(Plain):
    """As Hugging Face's: it begins each time where it was loaded, in the epoch that the state is of."""

    start: Any = None

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__(length)
        self.now = {"at": 0, "epoch": 0}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.now = {"at": 0, "epoch": self.epoch}
        if self.start is not None and self.start["epoch"] == self.epoch:
            self.now["at"] = self.start["at"]
        numbers = shuffled(self.part(), self.epoch)
        while self.now["at"] < len(numbers):
            self.now["at"] += 1
            yield numbers[self.now["at"] - 1]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.now)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = dict(state)


class HersUntold(Hers):
    """The same, whose user tells it no epoch."""


class HersToldOnce(Hers):
    """The same, whose user tells it only that epoch 1 begins."""


class HersToldItself(Hers):
    """The same, whose user calls its own set_epoch()."""


class TakesEpoch(Hers):
    """It gets its epoch from the state, too."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.epoch = state["epoch"]


def tell(loader: Any, epoch: int) -> None:
    """What a user calls before an epoch."""
    kind = type(loader.dataset)
    if kind in (Hers, TakesEpoch) or (kind is HersToldOnce and epoch == 1):
        loader.set_epoch(epoch)
    elif kind is HersToldItself:
        loader.dataset.set_epoch(epoch)


class Module(torch.nn.Module, Plain):
    """nn.Module's own state_dict() does not say where it is."""

    def __init__(self, length: int = LENGTH) -> None:
        torch.nn.Module.__init__(self)
        self.length, self.at = length, 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.part())

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return Shouts(found) if name == "state_dict" and type(self) is Module else found


class Shouts:
    """A method that must not be called."""

    def __init__(self, method: Any) -> None:
        self.__func__ = method.__func__

    def __call__(self) -> Any:
        raise AssertionError("a module was asked for its parameters")


class ModuleWithState(Module):
    def __iter__(self) -> Iterator[int]:
        for number in self.part()[self.at :]:
            self.at += 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        self.at = state["at"]


# ------------------------------------------------------------------------------------------------- those that raise


class Raises(IterableDataset[int]):
    """Its iterator raises at these numbers, each time that it comes there (or once), and goes on behind them."""

    def __init__(self, at: tuple[int, ...], times: int = 10**9) -> None:
        self.at, self.times = at, times

    def __iter__(self) -> Iterator[int]:
        return Raising(self)


class Raising:
    def __init__(self, source: Raises) -> None:
        self.of, self.next, self.raised = source, 0, dict.fromkeys(source.at, 0)

    def __iter__(self) -> Iterator[int]:
        self.next = 0
        return self

    def __next__(self) -> int:
        if self.next >= 20:
            raise StopIteration
        if self.next in self.raised and self.raised[self.next] < min(1, self.of.times):
            self.raised[self.next] += 1
            raise OSError(f"no number {self.next}")
        self.next += 1
        return self.next - 1


class RaisesInGenerator(Raises):
    """The same in a generator, which ends by that."""

    def __iter__(self) -> Iterator[int]:
        yield from Raising(self)


class LosesOne(Raises):
    """It raises instead of a sample, and does not try that again."""

    def __iter__(self) -> Iterator[int]:
        return Losing(self)


class Losing(Raising):
    def __next__(self) -> int:
        try:
            return super().__next__()
        except OSError:
            self.next += 1
            raise


def loader(dataset: Any, workers: int, **options: Any) -> shmloader.DataLoader[Any]:
    if not workers:
        options = {name: value for name, value in options.items() if name not in ("persistent_workers", "in_order")}
    return shmloader.DataLoader(dataset, **{"batch_size": 3, **options}, num_workers=workers)


class EmptiesWhatItGets(IterableDataset[int]):
    """Its own iterator, whose load_state_dict() takes everything out of the state, as lhotse's does."""

    def __init__(self) -> None:
        self.inside = {"place": 0}

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.inside["place"] == LENGTH:
            self.inside["place"] = 0
            raise StopIteration
        self.inside["place"] += 1
        return self.inside["place"] - 1

    def state_dict(self) -> dict[str, Any]:
        return {"inside": self.inside}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inside = {"place": state.pop("inside").pop("place")}
