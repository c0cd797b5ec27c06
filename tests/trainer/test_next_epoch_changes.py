"""What is changed between two epochs counts for the next one, although its order was drawn before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, assert_same, iterate, seed_all
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import shmloader
from shmloader.resume import drawn_from

LENGTH, BATCHES = 22, 6

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Sized(Augmented):
    """Can be made shorter."""

    def __init__(self) -> None:
        super().__init__(LENGTH)
        self.length = LENGTH

    def __len__(self) -> int:
        return self.length


class Mine(Sampler[int]):
    """A sampler of a user's."""

    def __init__(self) -> None:
        self.seed, self.table, self.array = 0, {"first": [0, 1]}, numpy.zeros(3)

    def __iter__(self) -> Iterator[int]:
        order = random.Random(f"{self.seed}{self.table}{self.array}")
        yield from (order.randrange(LENGTH) for _ in range(LENGTH))


class Counts(Mine):
    """One that counts its epochs by itself, when it is asked and while it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = self.given = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = random.Random(f"{self.seed}{self.epoch}")
        for _ in range(LENGTH):
            self.given += 1
            yield (order.randrange(LENGTH) + self.given) % LENGTH


class Keeps(Counts):
    """One that has a state as well."""

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def put(name: str, *values: Any) -> Callable[[Any, int], None]:
    """Sets an attribute of a loader's sampler before an epoch."""

    def change(loader: Any, epoch: int) -> None:
        setattr(loader.sampler, name, values[epoch % len(values)])

    return change


def weights(loader: Any, epoch: int) -> None:
    loader.sampler.weights[: 3 * epoch] = 0.0


ARRAY = numpy.ones(LENGTH)


def shared_memory(loader: Any, epoch: int) -> None:
    ARRAY[:] = [k % 3 == epoch % 3 for k in range(LENGTH)]


def reseed(loader: Any, epoch: int) -> None:
    (loader.generator or loader.sampler.generator).manual_seed(epoch)


def batch_size(loader: Any, epoch: int) -> None:
    loader.batch_sampler.batch_size = 3 + epoch


def length(loader: Any, epoch: int) -> None:
    loader.dataset.length = LENGTH - 3 * epoch


def inside(loader: Any, epoch: int) -> None:
    loader.sampler.table["first"].append(epoch)
    loader.sampler.array[0] = epoch


def nothing(loader: Any, epoch: int) -> None:
    pass


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


ONES = torch.ones(LENGTH, dtype=torch.double)
CASES: dict[str, tuple[Any, Any]] = {
    "weights": (lambda: {"sampler": WeightedRandomSampler(ONES.clone(), LENGTH)}, weights),
    "weights, others": (
        lambda: {"sampler": WeightedRandomSampler(ONES, LENGTH)},
        put("weights", ONES, torch.arange(1.0, LENGTH + 1).double()),
    ),
    "weights, generator": (
        lambda: {"sampler": WeightedRandomSampler(ONES.clone(), LENGTH, generator=generator())},
        weights,
    ),
    "weights, memory of an array": (
        lambda: {"sampler": WeightedRandomSampler(torch.from_numpy(ARRAY), LENGTH, generator=generator())},
        shared_memory,
    ),
    "indices": (
        lambda: {"sampler": SubsetRandomSampler(range(LENGTH))},
        put("indices", range(8), range(12), [1, 3, 5, 7, 9, 11, 13]),
    ),
    "seed": (lambda: {"sampler": DistributedSampler(range(LENGTH), 2, 0)}, put("seed", 5, 6)),
    "shuffle": (lambda: {"sampler": DistributedSampler(range(LENGTH), 2, 0)}, put("shuffle", True, False)),
    "batch size": (lambda: {"shuffle": True}, batch_size),
    "batch size, in chunks": (lambda: {"shuffle": True, "chunk_size": 2}, batch_size),
    "batch sampler": (
        lambda: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH)), 4, False), "batch_size": 1},
        batch_size,
    ),
    "length": (lambda: {"shuffle": True}, length),
    "length, stolen": (lambda: {"shuffle": True, "schedule": "steal"}, length),
    "length, no batches": (lambda: {"shuffle": True, "batch_size": None}, length),
    "samples": (lambda: {"sampler": RandomSampler(range(LENGTH), num_samples=9)}, put("_num_samples", 9, 5)),
    "generator": (lambda: {"shuffle": True, "generator": generator()}, reseed),
    "its generator": (lambda: {"sampler": RandomSampler(range(LENGTH), generator=generator())}, reseed),
    "another generator": (
        lambda: {"sampler": RandomSampler(range(LENGTH), generator=generator())},
        lambda loader, epoch: setattr(loader.sampler, "generator", torch.Generator().manual_seed(epoch)),
    ),
    "its own": (lambda: {"sampler": Mine()}, put("seed", 7, 8)),
    "its own, inside": (lambda: {"sampler": Mine()}, inside),
    "one that counts": (lambda: {"sampler": Counts()}, put("seed", 7, 8)),
    "one that counts, unchanged": (lambda: {"sampler": Counts()}, nothing),
    "one with a state": (lambda: {"sampler": Keeps()}, put("seed", 7, 8)),
    "through a thread": (lambda: {"sampler": Mine(), "device": "cpu", "on_device": dict}, put("seed", 7, 8)),
}


def epochs(case: str, prefetch: bool, how: str) -> tuple[list[Any], list[bool]]:
    options, change = CASES[case]
    seed_all()
    ARRAY[:] = 1.0
    got, was_early = [], []
    given = {"batch_size": 4, "num_workers": 2, "persistent_workers": how == "prefetched", **options()}
    if how == "prefetched":
        given["prefetch_epochs"] = prefetch
    with shmloader.DataLoader(Sized(), **given) as loader:
        for epoch in range(4):
            if how == "started" and prefetch:
                loader.start()
            if epoch:
                change(loader, epoch)
            got.append(iterate(loader))
            was_early.append(loader.state_dict()["begun"])
    return got, was_early


@pytest.mark.parametrize("how", ["prefetched", pytest.param("started", marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES)
def test_a_change_counts_for_the_next_epoch(case: str, how: str) -> None:
    expected, _ = epochs(case, False, how)
    got, was_early = epochs(case, True, how)
    assert_same(got, expected)  # and what is random in the samples: nothing that was drawn for a dropped epoch counts
    # the first epoch of a DistributedSampler whose set_epoch() nobody calls is drawn twice
    assert all(was_early[1:]) or how == "started", "prefetched all the same"


@pytest.mark.parametrize("left", [3, 1])
@pytest.mark.parametrize("case", ["weights", "its own", "one that counts", "one with a state", "its generator"])
def test_a_change_while_the_next_epoch_is_drawn(case: str, left: int) -> None:
    """Between two draws: those behind it must not hide it."""

    def epochs(prefetch: bool) -> list[Any]:
        options, change = CASES[case]
        seed_all()
        given = {"batch_size": 4, "num_workers": 2, "persistent_workers": True, **options()}
        with shmloader.DataLoader(Sized(), prefetch_epochs=prefetch, **given) as loader:
            got: list[Any] = []
            for epoch in range(3):
                got.append([])
                for batch in loader:
                    got[-1].append(batch["i"].tolist())
                    if len(got[-1]) == BATCHES - left:
                        change(loader, epoch + 1)
            return got

    assert epochs(True) == epochs(False)


def test_what_is_not_changed_is_not_drawn_again() -> None:
    for case in ("its own", "one that counts", "weights", "generator"):
        options = CASES[case][0]()
        given = {"batch_size": 4, "num_workers": 2, "persistent_workers": True, "prefetch_epochs": True, **options}
        with shmloader.DataLoader(Sized(), **given) as loader:
            iterate(loader)
            prefetched = loader._iterator._conductor.next
            assert prefetched is not None and iter(loader).epoch is prefetched, case


class Closed(Mine):
    """Holds what cannot be compared."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = (k for k in range(3))


class Large(Mine):
    def __init__(self) -> None:
        super().__init__()
        self.table = {"all": list(range(1_000_000))}


@pytest.mark.parametrize("kind", [Closed, Large])
def test_what_cannot_be_compared_is_not_prefetched(kind: Any) -> None:
    drawn_from._warned.clear()
    sampler = kind()
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True, "prefetch_epochs": True}
    with shmloader.DataLoader(Sized(), 4, sampler=sampler, **options) as loader:
        with pytest.warns(RuntimeWarning, match=f"changes to its BatchSampler|changes to its {kind.__name__}"):
            iterate(loader)
        assert not loader.state_dict()["begun"]
        sampler.seed = 4
        assert len(iterate(loader)) == 6


@pytest.mark.parametrize("kind", [list, tuple, range])
def test_an_epoch_of_a_plain_sequence_begins_early(kind: Any) -> None:
    """Such a sampler has no attributes, but a list may be changed too."""
    order = range(8) if kind is range else kind(range(8))
    with shmloader.DataLoader(range(8), None, sampler=order, num_workers=1) as loader:
        loader.start()
        if kind is list:
            order.reverse()
        assert list(loader) == list(order)
