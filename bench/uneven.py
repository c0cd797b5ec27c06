"""Samples of which some take much longer than others, and workers that say how long they were busy with them."""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.data import Dataset, get_worker_info

SEED = 7  # of where the slow samples are
ELEMENTS = 16  # of a sample, which is its index again and again


@dataclass(frozen=True)
class Skew:
    """How samples differ.

    Args:
        name, label: for the command line and the JSON, and for tables and pictures.
        share: the part of the samples that is slow.
        factor: how many times longer such a one takes.
    """

    name: str
    label: str
    share: float
    factor: int

    def sleeps(self, samples: int, seconds: float) -> list[float]:
        """What each sample takes, in an order that looks random and is always the same; exactly the share is slow."""
        slow = round(self.share * samples)
        sleeps = [seconds * self.factor] * slow + [seconds] * (samples - slow)
        random.Random(SEED).shuffle(sleeps)
        return sleeps


SKEWS = {
    skew.name: skew
    for skew in (
        Skew("rare", "1 % of the samples 20 times slower", 0.01, 20),
        Skew("bimodal", "half of the samples 5 times slower", 0.5, 5),
    )
}


class Busy:
    """The seconds that each worker has spent making samples, in memory that workers get from the trainer by fork.

    One word a worker, and one store a change, so that it can be read at any time: while the worker is busy it holds
    the seconds so far less the moment at which it began, which is negative, for the clock began with the machine.
    """

    def __init__(self, workers: int) -> None:
        self._words = memoryview(mmap.mmap(-1, 8 * workers)).cast("d")

    def begin(self, worker: int) -> None:
        self._words[worker] -= time.monotonic()

    def end(self, worker: int) -> None:
        self._words[worker] += time.monotonic()

    def seconds(self) -> float:
        """Of all workers together, up to now."""
        words = self._words.tolist()
        now = time.monotonic()
        return sum(word + now if word < 0 else word for word in words)


class Uneven(Dataset[torch.Tensor]):
    """Each sample sleeps as long as it is told to, and is a tensor of its index."""

    def __init__(self, sleeps: Sequence[float], busy: Busy) -> None:
        self._sleeps = sleeps
        self._busy = busy

    def __len__(self) -> int:
        return len(self._sleeps)

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        self._busy.begin(info.id)
        time.sleep(self._sleeps[index])
        sample = torch.full((ELEMENTS,), index)
        self._busy.end(info.id)
        return sample
