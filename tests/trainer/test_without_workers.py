"""Without workers: threads share an iterator, and code asks it for a batch while it makes one; each comes once."""

from __future__ import annotations

import itertools
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

import shmloader
from shmloader.trainer import fetcher


class Slow(Sampler[int]):
    """A sampler with a state of its own.  Another thread runs while it saves that, or draws."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            time.sleep(0.01)
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        time.sleep(0.01)
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Draws(Dataset[Any]):
    """Each sample is its index, and a number that it draws while the other threads' samples are made."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float]:
        time.sleep(0.002)
        return index, float(torch.rand(()))


def _in_threads(loader: Any) -> list[Any]:
    """What three threads get from one iterator, which call its next() for the first time at once."""
    iterator, ready = iter(loader), threading.Barrier(3)

    def take() -> list[str]:
        ready.wait()
        try:
            return list(map(str, iterator))
        except Exception as error:
            return [repr(error)]

    return sorted(itertools.chain(*_at_once(take, take, take)))


def test_a_sampler_with_a_state_gives_each_batch_once() -> None:
    loader: Any = shmloader.DataLoader(Numbers(12), batch_size=2, sampler=Slow(12))
    want = sorted(map(str, loader))
    assert _in_threads(loader) == want
    assert loader.state_dict()["epoch"] == 2


def test_an_epoch_that_resumes_begins_once() -> None:
    loader: Any = shmloader.DataLoader(Numbers(6), batch_size=None, shuffle=True)
    iter(loader)
    state = loader.state_dict()
    for _ in range(20):
        loader.load_state_dict(state)
        assert _in_threads(loader) == sorted(map(str, range(6)))


def test_a_sampler_is_asked_by_one_thread_at_a_time() -> None:
    loader: Any = shmloader.DataLoader(Numbers(6), batch_size=None, sampler=iter(Slow(6)))
    assert _in_threads(loader) == sorted(map(str, range(6)))


def _seeded(dataset: Any, **options: Any) -> Any:
    torch.manual_seed(7)
    return shmloader.DataLoader(dataset, batch_size=2, sample_seeds=True, **options)


def test_samples_that_are_seeded_draw_as_in_one_thread_and_leave_the_trainers_draws() -> None:
    want = sorted(map(str, _seeded(Draws())))
    after = torch.rand(())
    assert _in_threads(_seeded(Draws())) == want
    assert torch.rand(()) == after


class FromAll(Dataset[Any]):
    """Each sample draws from all three generators, and other threads run in between."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        drawn = [random.random()]
        time.sleep(0.0005)
        drawn += [numpy.random.rand(), torch.rand(()).item()]
        return torch.tensor([index, *drawn], dtype=torch.float64)


def _states() -> Any:
    return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


def _seeded_by(seed: int, dataset: Any = None) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return shmloader.DataLoader(
        FromAll() if dataset is None else dataset, batch_size=2, shuffle=True, sample_seeds=True, generator=generator
    )


def _lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


def _at_once(*works: Callable[[], Any]) -> list[Any]:
    """What each of these returns, in a thread of its own."""
    got: list[Any] = [None] * len(works)

    def run(k: int) -> None:
        got[k] = works[k]()

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_two_loaders_in_two_threads_draw_from_their_own_seeds() -> None:
    want = [_lists(_seeded_by(seed)) for seed in (1, 2, 3)]
    before = _states()
    assert _at_once(*(lambda seed=seed: _lists(_seeded_by(seed)) for seed in (1, 2, 3))) == want  # type: ignore[misc]
    assert _states() == before


def test_a_dataset_may_iterate_over_a_loader_that_is_seeded_too() -> None:
    class Nested(FromAll):
        def __getitem__(self, index: int) -> Any:
            before = super().__getitem__(index)
            assert _lists(_seeded_by(5)) == inner
            return before

    inner = _lists(_seeded_by(5))
    want = _lists(_seeded_by(1))
    assert _lists(_seeded_by(1, Nested())) == want


def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    want = _lists(_seeded_by(2))
    inside, leave = threading.Event(), threading.Event()

    class Waits(FromAll):
        def __getitem__(self, index: int) -> Any:
            inside.set()
            leave.wait(30)
            return index

    thread = threading.Thread(target=lambda: [*_seeded_by(1, Waits())])
    thread.start()
    inside.wait(30)
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        os._exit(0 if _lists(_seeded_by(2)) == want else 1)
    assert os.waitpid(pid, 0)[1] == 0
    leave.set()
    thread.join()


def test_an_exception_of_a_sample_lets_the_other_threads_go_on() -> None:
    class Fails(FromAll):
        def __getitem__(self, index: int) -> Any:
            raise KeyError(index)

    with pytest.raises(KeyError):
        _lists(_seeded_by(1, Fails()))
    want = _lists(_seeded_by(2))
    assert _at_once(lambda: _lists(_seeded_by(2))) == [want]


# ------------------------------------------------------------------------------------------------- next() within next()


class Rows(Dataset[Any]):
    """Asks its loader's iterator for a batch while it reads sample `at`."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.iterator: Iterator[Any] | None = None
        self.inner: list[Any] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            self.at = -1
            self.inner += [next(self.iterator)]  # type: ignore[arg-type]
        return index


def without_gaps(kind: Any, **options: Any) -> list[Any]:
    """A collate function that many people write: a batch of which nothing is left is replaced by the next one."""

    def collate(samples: list[int]) -> Any:
        found = [each for each in samples if each not in (2, 3, 4, 5, 8)]
        return found if found else next(batches)

    batches = iter(kind(Rows(), batch_size=2, collate_fn=collate, **options))
    return list(batches)


def from_the_dataset(kind: Any, **options: Any) -> Any:
    dataset = Rows(2)
    dataset.iterator = iter(kind(dataset, batch_size=2, collate_fn=list, **options))
    return list(dataset.iterator), dataset.inner


OPTIONS: list[dict[str, Any]] = [{}, {"device": "cpu"}, {"sample_seeds": True}, {"on_bad_sample": "skip"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("way", [without_gaps, from_the_dataset])
def test_the_inner_call_gets_the_next_batch(way: Any, options: dict[str, Any]) -> None:
    assert way(shmloader.DataLoader, **options) == way(torch.utils.data.DataLoader)


def test_a_state_counts_both() -> None:
    dataset = Rows(2)
    loader = shmloader.DataLoader(dataset, batch_size=2, collate_fn=list)
    dataset.iterator = iter(loader)
    had = [next(dataset.iterator), next(dataset.iterator)]
    assert (had, dataset.inner) == ([[0, 1], [2, 3]], [[4, 5]])
    state, rest = loader.state_dict(), list(dataset.iterator)
    again = shmloader.DataLoader(Rows(), batch_size=2, collate_fn=list)
    again.load_state_dict(state)
    assert (state["batches"], list(again)) == (3, rest)


def test_an_error_of_the_inner_call_is_one_batch() -> None:
    def collate(samples: list[int]) -> Any:
        if samples == [4, 5]:
            raise ValueError("this batch")
        return next(batches) if samples == [2, 3] else samples

    batches = iter(shmloader.DataLoader(Rows(), batch_size=2, collate_fn=collate))
    assert next(batches) == [0, 1]
    with pytest.raises(ValueError, match="this batch"):
        next(batches)
    assert list(batches) == [[6, 7], [8, 9], [10, 11]]


class Drawn(Rows):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return index, random.random()


def test_seeds_of_samples_are_those_of_their_places() -> None:
    def numbers(at: int) -> dict[int, float]:
        torch.manual_seed(0)
        dataset = Drawn(at)
        dataset.iterator = iter(shmloader.DataLoader(dataset, 2, collate_fn=list, sample_seeds=True))
        return {index: number for batch in [*dataset.iterator, *dataset.inner] for index, number in batch}

    assert numbers(2) == numbers(-1) and len(numbers(2)) == 12


def test_a_dataset_that_waits_for_another_threads_loader_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PATIENCE", 0.2)
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    inside = threading.Event()

    class Passes(FromAll):
        def __getitem__(self, index: int) -> Any:
            inside.set()
            return made.get(timeout=30)

    def passes_on() -> None:
        assert inside.wait(30)  # otherwise all could be made before the other thread begins a batch
        for batch in _seeded_by(2):
            for row in batch:
                made.put(row)

    with pytest.warns(RuntimeWarning, match="no longer waits"):
        passed, _ = _at_once(lambda: _lists(_seeded_by(1, Passes())), passes_on)
    assert len(passed) == 12
