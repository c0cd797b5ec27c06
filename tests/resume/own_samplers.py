"""Samplers of the user's own, each of which keeps its place in another way; and how the tests make loaders of them."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from resuming import Indices
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler

import shmloader

LENGTH = 10


class Own(Sampler[Any]):
    """Shuffles with torch's global generator when it is asked for the first index, and counts its state_dict()s."""

    asked, at = 0, 0
    order: Any = None

    def __len__(self) -> int:
        return LENGTH

    def permuted(self) -> list[int]:
        return torch.randperm(LENGTH).tolist()

    def __iter__(self) -> Iterator[Any]:
        if self.order is None:
            self.order, self.at = self.permuted(), 0
        while self.at < LENGTH:
            self.at += 1
            yield self.order[self.at - 1]
        self.order = None

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"order": copy.copy(self.order), "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.at = state["order"], state["at"]

    def in_batches(self) -> Any:
        return Batches(self, 4)


class Batches(Sampler[list[int]]):
    """A batch sampler whose state is that of what it batches: with a last batch that is not full, the next epoch's."""

    def __init__(self, sampler: Any, size: int) -> None:
        self.sampler, self.size = sampler, size

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.size)):
            yield batch

    def state_dict(self) -> Any:
        return self.sampler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.sampler.load_state_dict(state)


# ----------------------------------------------------------------------------------------- those that draw their order


class OfNumpy(Own):
    rng: Any = numpy.random

    def permuted(self) -> list[int]:
        if isinstance(self.rng, torch.Generator):
            return torch.randperm(LENGTH, generator=self.rng).tolist()
        if self.rng is random or isinstance(self.rng, random.Random):
            return self.rng.sample(range(LENGTH), LENGTH)
        return self.rng.permutation(LENGTH).tolist()  # type: ignore[no-any-return]


class OfRandom(OfNumpy):
    rng = random


class OfItsOwn(OfNumpy):
    """Its state lacks its generator."""

    def __init__(self, generator: Any) -> None:
        self.rng = generator


class Pool(Own):
    """A pool of indices that NumPy's generator draws from, index by index; all of it is in the state."""

    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(7)
        self.left: list[int] = []

    def __iter__(self) -> Iterator[int]:
        self.left = self.left or list(range(LENGTH))
        while self.left:
            yield self.left.pop(int(self.rng.integers(len(self.left))))

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"left": list(self.left), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left, self.rng.bit_generator.state = list(state["left"]), state["rng"]


# ---------------------------------------------------------------------------------------------- what they do at the end


class StartsOver(Own):
    """Starts over at its end, in another order, so its state there is the next epoch's.  It returns its own dict."""

    def __init__(self) -> None:
        self.at, self.epoch = 0, 0

    def __iter__(self) -> Iterator[int]:
        yield from self.rest()
        self.at, self.epoch = 0, self.epoch + 1

    def rest(self) -> Iterator[int]:
        while self.at < LENGTH:
            self.at += 1
            yield (2 * self.epoch + 1) * self.at % LENGTH

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Yielded(DistributedSampler[Any]):
    """Keeps how many it has given until the next iter(), as torchdata's StatefulDistributedSampler does."""

    asked = 0

    def __init__(self) -> None:
        super().__init__(range(LENGTH), 1, 0)  # type: ignore[arg-type]
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

    def in_batches(self) -> Any:
        return Batches(self, 4)


class ModuleSampler(torch.nn.Module):
    """nn.Module's own state_dict() does not say where it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3)).tolist())

    def __len__(self) -> int:
        return LENGTH


class ModuleWithState(ModuleSampler):
    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        while self.at < LENGTH:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        self.at = state["at"]


# ------------------------------------------------------------------------------------- iterators that iter() restarts


class Restarting(Sampler[Any]):
    """Its own iterator, which iter() restarts, as lhotse's: iter() is called once an epoch, and then only next()."""

    def __init__(self) -> None:
        self.given: list[Any] = [3, 9, 0, 4, 7, 1, 8, 2, 6, 5]
        self.at, self.starts = LENGTH, 0

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

    def in_batches(self) -> Any:
        self.given = [[3, 9, 0], [4], [7, 1], [8, 2, 6], [5]]
        return self


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
        if self.at >= LENGTH:
            raise StopIteration
        self.at += 1
        return self.at * (1, 3, 7, 9)[self.epoch] % LENGTH

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.is_restored = state.pop("epoch"), state.pop("at"), True  # as lhotse's


class Numbered(Cuts):
    """The same with a length, and a set_epoch() that counts at any time."""

    def __len__(self) -> int:
        return LENGTH

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class BeginsAgain(Numbered):
    """At its end it is at the beginning again, so its state is never that of its end."""

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.at = 0
            raise


# ----------------------------------------------------------------------------------------- whose state_dict() is a stub


class Stub(Own):
    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class StubAtOnce(Stub):
    def __iter__(self) -> Iterator[int]:
        return iter(self.permuted())


class StubOfTorchs(RandomSampler):
    def __init__(self) -> None:
        super().__init__(range(LENGTH))

    state_dict, load_state_dict = Stub.state_dict, Stub.load_state_dict


# -------------------------------------------------------------------------------------------------- loaders of them

KINDS: dict[str, Any] = {
    "torch's generator": Own,
    "random": OfRandom,
    "NumPy's generator": OfNumpy,
    "a torch.Generator": lambda: OfItsOwn(torch.Generator().manual_seed(5)),
    "a random.Random": lambda: OfItsOwn(random.Random(5)),
    "a numpy Generator": lambda: OfItsOwn(numpy.random.default_rng(5)),
    "a pool": Pool,
    "starts over": StartsOver,
    "yielded": Yielded,
    "a module": ModuleWithState,
    "restarting": Restarting,
    "stateful": Stateful,
    "cuts": Cuts,
    "numbered": Numbered,
    "begins again": BeginsAgain,
}
FORMS: dict[str, Any] = {
    "samples": lambda sampler: {"sampler": sampler, "batch_size": None},
    "batches": lambda sampler: {"sampler": sampler, "batch_size": 4},
    "dropped": lambda sampler: {"batch_sampler": BatchSampler(sampler, 3, True)},
    "its own batches": lambda sampler: {"batch_sampler": sampler.in_batches()},
    "batches of batches": lambda sampler: {
        "batch_sampler": BatchSampler(BatchSampler(sampler, 2, False), 2, False),  # type: ignore[arg-type]
        "collate_fn": list,
    },
}
OPTIONS: list[Any] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "schedule": "steal"},
    {"num_workers": 2, "chunk_size": 2},
    {"num_workers": 1, "in_order": False},
    {"num_workers": 2, "device": "cpu", "on_device": copy.copy},
]


def forms_of(kind: str) -> list[str]:
    """torch's BatchSampler calls iter() of a sampler for each batch, and with drop_last only at the beginning."""
    sampler = KINDS[kind]()
    if hasattr(sampler, "__next__"):
        return ["samples", "dropped", "its own batches"][: 2 + hasattr(sampler, "in_batches")]
    return [form for form in FORMS if form != "its own batches" or hasattr(sampler, "in_batches")]


def made(sampler: Any, form: str = "batches", **options: Any) -> Any:
    return shmloader.DataLoader(Indices(LENGTH), **FORMS[form](sampler) | options)  # type: ignore[arg-type]


def sampler_in(loader: Any) -> Any:
    found = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while isinstance(found, (BatchSampler, Batches)):
        found = found.sampler
    return found
