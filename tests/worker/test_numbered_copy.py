"""set_epoch() of a dataset is called on a worker's copy only where the copy has another number than the task.

Without workers there is one dataset, so what it gives there is right with workers too.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import iterate, label, seed_all
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Sampler, Subset, get_worker_info

import shmloader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LENGTH = 16


class Numbered(Dataset[Any]):
    """Each sample is the number that set_epoch() got."""

    def __init__(self) -> None:
        self.number = 0

    def set_epoch(self, epoch: int) -> None:
        self.number = epoch

    def __getitem__(self, index: int) -> Any:
        return self.number

    def __len__(self) -> int:
        return LENGTH


class TakesMore(Numbered):
    """Its set_epoch() may get a seed, too, or a number that is no int."""

    def set_epoch(self, epoch: Any, seed: int = 0) -> None:
        self.number = int(epoch) + seed


class Counts(Numbered):
    """Each sample is how often it was called."""

    calls = 0

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.calls += 1

    def __getitem__(self, index: int) -> Any:
        return self.calls


class Rotates(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self.items = list(range(LENGTH))

    def set_epoch(self, epoch: int) -> None:
        self.items.append(self.items.pop(0))

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Shuffles(Rotates):
    def set_epoch(self, epoch: int) -> None:
        {"random": random, "numpy": numpy.random}[("random", "numpy")[epoch % 2]].shuffle(self.items)  # type: ignore


class Seeds(Numbered):
    """Each sample is drawn; set_epoch() seeds, as many public datasets' does."""

    def set_epoch(self, epoch: int) -> None:
        random.seed(epoch)
        numpy.random.seed(epoch)
        torch.manual_seed(epoch)

    def __getitem__(self, index: int) -> Any:
        return random.random() + numpy.random.rand() + torch.rand(()).item()


class CountsInStream(IterableDataset[Any]):
    """Each worker's samples are how often its copy was called."""

    calls = 0

    def set_epoch(self, epoch: int) -> None:
        self.calls += 1

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        yield from [self.calls] * (LENGTH // (1 if info is None else info.num_workers))


FORKSERVER = pytest.param({"num_workers": 2, "multiprocessing_context": "forkserver"}, marks=pytest.mark.long)
FRESH: list[Any] = [{"num_workers": 2}, {"num_workers": 2, "schedule": "steal"}, FORKSERVER]
PERSISTENT: list[Any] = [
    {"num_workers": 2, "persistent_workers": True},
    # of two, one may make no sample in an epoch, and then its copy is not called for it
    {"num_workers": 1, "persistent_workers": True, "schedule": "steal"},
    {"num_workers": 2, "persistent_workers": True, "chunk_size": 1},
    pytest.param(
        {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "forkserver"}, marks=pytest.mark.long
    ),
]
by_options = pytest.mark.parametrize("options", [{}, *FRESH, *PERSISTENT], ids=label)


def samples(loader: Any) -> list[Any]:
    return [sample for batch in iterate(loader) for sample in batch.tolist()]


def three_epochs(
    dataset: Any, before: Callable[[Any, int], Any], cls: Any = shmloader.DataLoader, **options: Any
) -> Any:
    """The samples of three epochs; `before` is called with the dataset before each."""
    seed_all()
    loader = cls(dataset, 2, **options)
    got = []
    for epoch in range(3):
        before(dataset, epoch)
        got.append(samples(loader))
    if cls is shmloader.DataLoader:
        loader.close()
    return got


def call(dataset: Any, epoch: int) -> None:
    dataset.set_epoch(epoch)


def call_once(dataset: Any, epoch: int) -> None:
    if not epoch:
        dataset.set_epoch(5)


# --------------------------------------------------------------------------------------------------------- one call


@by_options
@pytest.mark.parametrize("kind", [Numbered, Counts, Rotates, CountsInStream])
@pytest.mark.parametrize("before", [call, call_once])
def test_a_copy_has_what_the_trainers_dataset_has(kind: Any, before: Any, options: Any) -> None:
    if kind is CountsInStream and ("schedule" in options or "chunk_size" in options):
        pytest.skip("they are for map-style datasets")
    got = three_epochs(kind(), before, **options)
    if options.get("persistent_workers") and before is call_once:
        assert got == [got[0]] * 3
    assert got == three_epochs(kind(), before)


@pytest.mark.parametrize("options", FRESH, ids=label)
def test_an_attribute_that_is_set_after_the_call_is_kept(options: Any) -> None:
    def call_and_set(dataset: Any, epoch: int) -> None:
        dataset.set_epoch(epoch)
        dataset.number = 10 * epoch

    assert three_epochs(Numbered(), call_and_set, **options) == [[10 * epoch] * LENGTH for epoch in range(3)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.long)])
def test_workers_of_a_dataset_that_seeds_draw_what_torchs_draw(method: str, persistent: bool) -> None:
    options: Any = {"num_workers": 2, "persistent_workers": persistent, "multiprocessing_context": method}
    theirs = three_epochs(Seeds(), call, torch.utils.data.DataLoader, **options)
    assert three_epochs(Seeds(), call, **options) == theirs
    assert all(len(set(epoch)) == LENGTH for epoch in theirs)


@by_options
def test_copies_that_shuffle_agree(options: Any) -> None:
    got = three_epochs(Shuffles(), call, **options)
    assert [sorted(epoch) for epoch in got] == [list(range(LENGTH))] * 3
    assert got[0] != got[1] != got[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_is_there_many_times_is_called_once(persistent: bool) -> None:
    part = Counts()
    dataset = ConcatDataset([part, Subset(part, range(4)), part])
    with shmloader.DataLoader(dataset, 2, num_workers=1, persistent_workers=persistent) as loader:
        for epoch in range(3):
            loader.set_epoch(epoch)
            assert set(samples(loader)) == {epoch + 1} and part.calls == epoch + 1


def test_a_part_that_has_the_number_already_is_not_called() -> None:
    parts = Counts(), Counts()
    with shmloader.DataLoader(ConcatDataset(parts), 2, num_workers=1, persistent_workers=True) as loader:
        parts[0].set_epoch(5)
        assert samples(loader) == [1] * LENGTH + [0] * LENGTH  # their numbers differ, so tasks have none
        parts[1].set_epoch(5)
        assert samples(loader) == [1] * 2 * LENGTH


# ----------------------------------------------------------------------------------------- when an index was drawn


@pytest.mark.parametrize(
    ("third", "number", "given"),
    [((numpy.int64(3),), 3, 3), ((torch.tensor(3),), 3, 3), ((3.0,), None, 2), ((3, 7), None, 2)],
    ids=label,
)
def test_what_is_not_one_number_is_none(third: Any, number: int | None, given: int) -> None:
    """The number before it would be a wrong one, for a state and for fresh workers.  Workers that persist keep it."""
    dataset = TakesMore()
    loader = shmloader.DataLoader(dataset, 4, num_workers=1, persistent_workers=True)
    dataset.set_epoch(2)
    iterate(loader)
    dataset.set_epoch(*third)
    assert loader.state_dict()["dataset_epoch"] == number
    assert {int(batch[0]) for batch in loader} == {given}
    loader.close()


class Calls(Sampler[int]):
    """A sampler that calls the dataset's set_epoch() before each of so many rounds through its indices."""

    def __init__(self, dataset: Any, rounds: int = 1) -> None:
        self.dataset, self.rounds, self.epochs = dataset, rounds, 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.rounds):
            self.epochs += 1
            self.dataset.set_epoch(self.epochs)
            yield from range(LENGTH)

    def __len__(self) -> int:
        return self.rounds * LENGTH


@by_options
@pytest.mark.parametrize("kind", [Numbered, Counts])
def test_a_sampler_calls_it(kind: Any, options: Any) -> None:
    dataset = kind()
    with shmloader.DataLoader(dataset, 2, sampler=Calls(dataset), **options) as loader:
        for epoch in (1, 2, 3):
            assert set(samples(loader)) == {epoch}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 1, "prefetch_factor": 4},
        {"num_workers": 2, "schedule": "steal"},
        {"num_workers": 2, "chunk_size": 1},
        # windows of three batches, of which eight are a round
        {"num_workers": 1, "prefetch_factor": 3, "group_by": lambda index: index % 3},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True, "schedule": "steal"},
    ],
    ids=label,
)
def test_a_sampler_calls_it_in_mid_epoch(options: Any) -> None:
    dataset = Numbered()
    with shmloader.DataLoader(dataset, 2, sampler=Calls(dataset, 3), **options) as loader:
        for first in (1, 4):
            assert samples(loader) == [first + k for k in range(3) for _ in range(LENGTH)]


@pytest.mark.parametrize("options", [{"num_workers": 1, "prefetch_factor": 2}, {}], ids=label)
def test_a_call_in_mid_epoch_is_for_what_is_drawn_later(options: Any) -> None:
    dataset = Numbered()
    with shmloader.DataLoader(dataset, 2, **options) as loader:
        batches = iter(loader)
        got = [next(batches)]
        dataset.set_epoch(7)
        state = loader.state_dict()
        got += batches
    drawn = 1 + options.get("prefetch_factor", 0)
    assert [int(batch[0]) for batch in got] == [0] * drawn + [7] * (LENGTH // 2 - drawn)
    assert state["dataset_epoch"] == (None if options else 7)


# ------------------------------------------------------------------------------------------------- other processes


class Dies(Counts):
    """One worker dies over a sample, once the trainer has called set_epoch() for the next epoch."""

    def __init__(self, mark: pathlib.Path) -> None:
        super().__init__()
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == 5 and self.number == 6 and not self.mark.exists():
            self.mark.touch()
            signal.pause()
        return torch.tensor([self.number, self.calls])


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    "start",
    [
        {"multiprocessing_context": "fork"},
        pytest.param({"multiprocessing_context": "forkserver"}, marks=pytest.mark.long),
    ],
    ids=label,
)
def test_a_worker_that_replaces_a_dead_one_gets_its_tasks_number(
    tmp_path: pathlib.Path, start: Any, early: bool
) -> None:
    dataset = Dies(tmp_path / "died")
    options: Any = {"on_worker_death": "respawn", "prefetch_factor": 8, **start}
    with shmloader.DataLoader(dataset, 1, num_workers=1, persistent_workers=True, **options) as loader:
        dataset.set_epoch(5)
        assert {tuple(batch[0].tolist()) for batch in loader} == {(5, 1)}
        dataset.set_epoch(6)
        batches = iter(loader)
        got = [next(batches) for _ in range(5)]
        while not dataset.mark.exists():
            time.sleep(0.001)
        if early:
            dataset.set_epoch(7)  # what is open keeps 6
        os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
        got += itertools.islice(batches, 3)
        assert [batch[0, 0].item() for batch in got] == [6] * 8
        # the copy of a fork has all calls of the trainer's dataset, and perhaps one more; a pickle has the first one
        forked = 4 if early else 2
        calls = forked if start["multiprocessing_context"] == "fork" else 2
        assert [batch[0, 1].item() for batch in got] == [2] * 5 + [calls] * 3
        list(batches)


@pytest.mark.long
@pytest.mark.parametrize("persistent", [False, True])
def test_a_fork_server_passes_the_number_on(persistent: bool) -> None:
    options: Any = {"num_workers": 2, "persistent_workers": persistent}
    expected = three_epochs(Counts(), call)
    assert three_epochs(Counts(), call, multiprocessing_context="forkserver", **options) == expected


# ------------------------------------------------------------------------------------------------- with a state


class Place(CountsInStream):
    """A stream that says where it is, and how often it was called in this process: (calls, number, place)."""

    number, at = 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.calls += 1
        self.number, self.at = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < 8:
            self.at += 1
            yield torch.tensor([self.calls, self.number, self.at])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number, self.at = state["number"], state["at"]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_in_a_copy_makes_its_number_unknown(persistent: bool) -> None:
    def made() -> Any:
        return shmloader.DataLoader(Place(), 2, num_workers=1, persistent_workers=persistent)

    with made() as first:
        first.set_epoch(3)
        batches = iter(first)
        next(batches)
        state = first.state_dict()
    with made() as second:
        second.load_state_dict(state)
        resumed, *later = ([row.tolist() for batch in second for row in batch] for _ in range(3))
    assert [row[1:] for row in resumed] == [[3, at] for at in range(3, 9)]
    assert all([row[1:] for row in epoch] == [[3, at] for at in range(1, 9)] for epoch in later)
    calls = [{row[0] for row in epoch} for epoch in (resumed, *later)]
    # once in the trainer's load_state_dict(); in the copy before its own, and again once that is undone
    assert calls == ([{2}, {3}, {3}] if persistent else [{2}, {1}, {1}])
