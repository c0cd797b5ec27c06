"""look_ahead: a dataset's __prefetch__ gets each index once, before its sample is asked for; batches stay the same."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same, iterate, seed_all
from torch.utils.data import ConcatDataset, IterableDataset, StackDataset, Subset

import shmloader
from shmloader.worker.look_ahead import prefetch_of

OPTIONS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {},
    {"num_workers": 1, "look_ahead": 1},
    {"look_ahead": 4, "prefetch_factor": 4},
    {"batch_size": None, "look_ahead": 4, "prefetch_factor": 4},
    {"chunk_size": 2},
    {"schedule": "steal", "num_workers": 3},
    {"schedule": "steal", "chunk_size": 3},
    {"in_order": False, "look_ahead": 4, "prefetch_factor": 4},
    {"sample_seeds": True},
    {"num_workers": 0, "sample_seeds": True},
    {"persistent_workers": True},
    {"on_worker_death": "respawn"},
    {"on_bad_sample": "skip"},
    {"device": "cpu"},
]


class Recording(torch.utils.data.Dataset[Any]):
    """Records its calls in a file: the process, the method and the index, in order."""

    def __init__(self, path: Path, length: int = 24) -> None:
        self.path, self.length, self.epoch = path, length, -1
        path.touch()

    def __len__(self) -> int:
        return self.length

    def write(self, *words: object) -> None:
        with open(self.path, "a", buffering=1) as file:
            file.write(" ".join(map(str, (os.getpid(), *words))) + "\n")

    def __prefetch__(self, indices: Any) -> None:
        assert type(indices) is list
        for index in indices:
            self.write("prefetch", index)

    def __getitem__(self, index: int) -> Any:
        self.write("get", index)
        return torch.full((3,), index) + torch.rand(3), index

    @property
    def calls(self) -> list[tuple[int, str, int]]:
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [(int(pid), what, int(index)) for pid, what, index in lines]


class Epochs(Recording):
    def set_epoch(self, epoch: int) -> None:
        self.write("epoch", epoch)


def loader(dataset: Any, **options: Any) -> Any:
    given = {"batch_size": 4, "shuffle": True, "num_workers": 2, **options}
    if given["num_workers"]:
        given.setdefault("multiprocessing_context", "fork")
    return shmloader.DataLoader(dataset, **given)


def check_calls(calls: list[tuple[int, str, int]]) -> None:
    """Each get has had one prefetch, in its process, before it."""
    prefetched: Counter[tuple[int, int]] = Counter()
    for pid, what, index in calls:
        if what == "prefetch":
            assert not prefetched[pid, index]
            prefetched[pid, index] += 1
        elif what == "get":
            assert prefetched[pid, index] == 1, (pid, index)
            del prefetched[pid, index]
    assert not +prefetched


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_index_once_before_its_sample(options: dict[str, Any], tmp_path: Path) -> None:
    dataset = Recording(tmp_path / "calls")
    epochs = 2
    with loader(dataset, **options) as ours:
        seed_all()
        batches = [iterate(ours) for _ in range(epochs)]
    check_calls(dataset.calls)
    assert sum(what == "get" for _, what, _ in dataset.calls) == epochs * 24
    with loader(Recording(tmp_path / "none"), **{**options, "look_ahead": 0}) as plain:
        seed_all()
        again = [iterate(plain) for _ in range(epochs)]
        assert all(what != "prefetch" for _, what, _ in plain.dataset.calls)
    if options.get("in_order", True):
        assert_same(batches, again)


class Held(Recording):
    """A worker waits before it looks behind its first batch, until all that may be open is open."""

    def __prefetch__(self, indices: Any) -> None:
        while not self.path.with_name("opened").exists():
            time.sleep(0.001)
        super().__prefetch__(indices)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_so_many_batches(k: int, tmp_path: Path) -> None:
    dataset = Held(tmp_path / "calls", 48)
    with loader(dataset, look_ahead=k, prefetch_factor=3) as ours:
        iterator = iter(ours)
        (tmp_path / "opened").touch()
        iterate(iterator)
    for worker in {pid for pid, _, _ in dataset.calls}:
        outstanding, most = 0, 0
        for pid, what, _ in dataset.calls:
            if pid == worker:
                outstanding += 1 if what == "prefetch" else -1
                most = max(most, outstanding)
        assert most == 4 * k


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_resumed_epoch(method: str, tmp_path: Path) -> None:
    first = Recording(tmp_path / "first")
    with loader(first, multiprocessing_context=method, sample_seeds=True) as ours:
        seed_all()
        iterator = iter(ours)
        before = [next(iterator) for _ in range(2)]
        state = ours.state_dict()
    seed_all()
    whole = iterate(loader(Recording(tmp_path / "whole"), look_ahead=0, sample_seeds=True))
    second = Recording(tmp_path / "second")
    with loader(second, multiprocessing_context=method, sample_seeds=True) as other:
        other.load_state_dict(state)
        assert_same(before + iterate(other), whole)
    check_calls(second.calls)
    assert sum(what == "get" for _, what, _ in second.calls) == 16


class Killed(Recording):
    def __getitem__(self, index: int) -> Any:
        flag = self.path.with_name("killed")
        if index == 13 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"schedule": "steal"}, {"chunk_size": 2}], ids=str)
def test_a_worker_dies(options: dict[str, Any], tmp_path: Path) -> None:
    dataset = Killed(tmp_path / "calls")
    with loader(dataset, on_worker_death="respawn", look_ahead=2, **options) as ours:
        seed_all()
        batches = iterate(ours)
    calls = dataset.calls
    (dead,) = {pid for pid, what, index in calls if (what, index) == ("prefetch", 13)} - {
        pid for pid, what, index in calls if (what, index) == ("get", 13)
    }
    check_calls([call for call in calls if call[0] != dead])
    with loader(Recording(tmp_path / "plain"), look_ahead=0, **options) as plain:
        seed_all()
        assert_same(batches, iterate(plain))


class Fails(Recording):
    def __prefetch__(self, indices: Any) -> None:
        if 9 in indices:
            raise KeyError("no such part")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_it_raises_comes_with_its_batch(workers: int, tmp_path: Path) -> None:
    with loader(Fails(tmp_path / "calls"), num_workers=workers, shuffle=False) as ours:
        iterator, got = iter(ours), []
        for _ in range(6):
            try:
                got.append(next(iterator)[1].tolist())
            except KeyError as error:
                got.append(sorted(set(re.findall("no such part|in __prefetch__", str(error)))))
    raised = ["in __prefetch__", "no such part"] if workers else ["no such part"]
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], raised, [12, 13, 14, 15], [16, 17, 18, 19], [20, 21, 22, 23]]


def test_an_epoch_is_heard_of_before_its_indices(tmp_path: Path) -> None:
    """24 samples in batches of 4, 2 workers: those of each epoch are prefetched behind its set_epoch()."""
    dataset = Epochs(tmp_path / "calls")
    with loader(dataset, shuffle=False, persistent_workers=True, look_ahead=2) as ours:
        for epoch in range(3):
            ours.set_epoch(epoch)
            iterate(ours)
    for worker in {pid for pid, what, _ in dataset.calls if what == "get"}:
        epoch, seen = -1, set()
        for pid, what, number in dataset.calls:
            if pid == worker and what == "epoch":
                epoch = number
            elif pid == worker and what == "prefetch":
                assert (epoch, number) not in seen
                seen.add((epoch, number))
        assert len(seen) == 3 * 12


def test_an_epoch_that_is_left_half_way(tmp_path: Path) -> None:
    """Persistent workers make what was open, so they use what they have prefetched."""
    dataset = Recording(tmp_path / "calls")
    with loader(dataset, persistent_workers=True, look_ahead=2) as ours:
        for _ in range(3):
            next(iter(ours))
        iterate(ours)
    check_calls(dataset.calls)


# ------------------------------------------------------------------------------------------------------ which datasets


class Delegates(torch.utils.data.Dataset[Any]):
    """A wrapper that has all attributes of what it wraps."""

    def __init__(self, inner: Recording) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[len(self) - 1 - index]


class Transformed(Recording):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[1]


class Refuses(Recording):
    __prefetch__ = None  # type: ignore[assignment]


def test_which_datasets_have_it(tmp_path: Path) -> None:
    for dataset in (Delegates(Recording(tmp_path / "a")), Refuses(tmp_path / "b"), range(5), {"a": 1}):
        assert prefetch_of(dataset) is None
    assert prefetch_of(Transformed(tmp_path / "c")) is not None


# from two datasets, of 10 and of 14 samples: a wrapper, what is asked of it, and what each of them gets then
WRAPPED: dict[str, Callable[[Any, Any], tuple[Any, list[int], list[int], list[int]]]] = {
    "Subset": lambda a, b: (Subset(a, [9, 3, 5, 0]), [3, 1, -1], [0, 3, 0], []),
    "Subset of a Subset": lambda a, b: (Subset(Subset(a, [9, 3, 5, 0]), [2, 0]), [1, 0], [9, 5], []),
    "ConcatDataset": lambda a, b: (ConcatDataset([a, b]), [0, 10, 9, 23, -1], [0, 9], [0, 13, 13]),
    "ConcatDataset of another": lambda a, b: (ConcatDataset([range(10), b]), [0, 10, 9, 23], [], [0, 13]),
    "ConcatDataset, out of range": lambda a, b: (ConcatDataset([a, b]), [24, -25, 2], [2], []),
    "StackDataset": lambda a, b: (StackDataset(a, Subset(b, range(10))), [1, 2], [1, 2], [1, 2]),
    "StackDataset of names": lambda a, b: (StackDataset(x=a, y=range(10)), [1, 2], [1, 2], []),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_torchs_wrappers(wrap: Any, tmp_path: Path) -> None:
    inner = Recording(tmp_path / "a", 10), Recording(tmp_path / "b", 14)
    dataset, indices, *expected = wrap(*inner)
    prefetch = prefetch_of(dataset)
    assert prefetch is not None
    prefetch(indices)
    assert [[index for _, what, index in each.calls if what == "prefetch"] for each in inner] == expected


# ------------------------------------------------------------------------------------------------------------- refused


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


def test_more_than_is_known() -> None:
    with pytest.raises(ValueError, match=r"look_ahead=5 is more than prefetch_factor=2.*Give prefetch_factor=5 too"):
        shmloader.DataLoader(range(4), num_workers=1, look_ahead=5)
    assert shmloader.DataLoader(range(4), look_ahead=5).look_ahead == 5  # without workers there is nothing to compare


def test_a_stream() -> None:
    with pytest.raises(ValueError, match="look_ahead=2 needs a map-style dataset, but got Stream"):
        shmloader.DataLoader(Stream(), num_workers=1, look_ahead=2)
    assert iterate(shmloader.DataLoader(Stream(), num_workers=1, look_ahead=0, batch_size=None)) == [0, 1, 2, 3]
