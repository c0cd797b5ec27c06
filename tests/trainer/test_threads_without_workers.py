"""Threads that share the iterator of a loader without workers: each batch comes once, as it would in one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

import shmloader


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

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float]:
        time.sleep(0.002)
        return index, float(self.draw())


class Awaits(Draws):
    async def __getitem__(self, index: int) -> tuple[int, float]:  # type: ignore[override]
        return super().__getitem__(index)


def _in_threads(loader: Any) -> list[Any]:
    """What three threads get from one iterator, which call its next() for the first time at once."""
    iterator, ready = iter(loader), threading.Barrier(3)
    got: list[Any] = []

    def take() -> None:
        ready.wait()
        try:
            got.extend(map(str, iterator))
        except Exception as error:
            got.append(repr(error))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(got)


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
    for draw in (lambda: torch.rand(()), lambda: torch.rand((), generator=shmloader.sample_generator())):
        want = sorted(map(str, _seeded(Draws(draw))))
        after = torch.rand(())
        assert _in_threads(_seeded(Draws(draw))) == want
        assert torch.rand(()) == after


def test_coroutines_of_several_threads_take_turns_on_the_loop() -> None:
    dataset = Awaits(lambda: torch.rand((), generator=shmloader.sample_generator()))
    with _seeded(dataset, look_ahead=2) as loader:
        want = sorted(map(str, loader))
    with _seeded(dataset, look_ahead=2) as loader:
        assert _in_threads(loader) == want
