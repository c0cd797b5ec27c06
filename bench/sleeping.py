"""Samples that take their time without using the processor: a dataset, the same as jobs, and what a sleep is worth."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.cases import ENDLESS

_asleep: Sleeping | None = None  # what the workers of this process are forked with, and their jobs read


class Sleeping(Dataset[torch.Tensor]):
    """One sample again and again, by reference, each time after a sleep."""

    def __init__(self, sample: torch.Tensor, seconds: float) -> None:
        self._sample = sample
        self._seconds = seconds

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return self._sample


def jobs_of(data: Sleeping) -> Callable[[int], list[Callable[[], torch.Tensor]]]:
    """A data source: asked for n, n callables that each load the next sample.

    A job travels as its index alone: the data are those that the worker was forked with.
    """
    global _asleep
    _asleep = data
    indices = itertools.count()
    return lambda samples: [functools.partial(_load, next(indices)) for _ in range(samples)]


def _load(index: int) -> torch.Tensor:
    assert _asleep is not None, "a worker that was not forked"
    return _asleep[index]


def sharpen() -> None:
    """Let sleeps of this process, and of all that it forks, end when they should.

    By default the kernel may let each last 50 us longer, which is 3 % of the experiment's shortest at a scale of 0.25.
    """
    Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")


def overshoot(seconds: float, workers: int, at_least: float) -> dict[str, float]:
    """How much too long a sleep is, where so many processes sleep at once and nothing else runs.

    Args:
        seconds: to sleep.
        workers: processes.
        at_least: seconds that each of them goes on for.

    Returns:
        overshoot: seconds, the mean of all sleeps.
    """
    sharpen()
    context: Any = multiprocessing.get_context("fork")
    with context.Pool(workers) as pool:
        means = pool.starmap(_oversleep, [(seconds, at_least)] * workers, chunksize=1)
    return {"overshoot": sum(means) / workers}


def _oversleep(seconds: float, at_least: float) -> float:
    times, begun = 0, time.perf_counter()
    while times < 3 or time.perf_counter() < begun + at_least:
        time.sleep(seconds)
        times += 1
    return (time.perf_counter() - begun) / times - seconds
