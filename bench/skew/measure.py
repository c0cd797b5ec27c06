"""Uneven samples: how fast a loader delivers them, how late the first batch is, and how long its workers are idle.

This runs in a process of its own, see core/child.py.
"""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from bench.core.session import sharpen

SEED = 7  # of where the slow samples are
ELEMENTS = 16  # of a sample, which is its index again and again
LOADERS = {
    "torch": "torch",
    "shmloader": "shmloader, in turns",
    "shmloader-steal": "shmloader, steal",
    "shmloader-chunked": "shmloader, steal, chunks",
}
AHEAD = 4  # batches a worker that the dataset has beyond those that are measured; a loader asks for two ahead


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
        Skew("even", "all samples alike", 0.0, 1),
    )
}


class Busy:
    """The seconds that each worker has spent making samples, in memory that workers get from the trainer by fork.

    One word a worker, and one store a change, so that it can be read at any time: while the worker is busy it holds
    the seconds so far less the moment at which it began, which is negative, because the clock began with the machine.
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
    """Each sample sleeps for its time, and is a tensor of its index."""

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


def throughput(
    loader: str, case: str, seconds: float, batches: int, batch_size: int, chunk_size: int, workers: int
) -> dict[str, Any]:
    """Take so many batches as fast as they come.

    What is timed begins when each worker may have delivered two and ends with the last; the dataset has more than
    that, so that work is never short while it is.

    Returns:
        first: seconds from making the loader to its first batch;
        samples_per_second;
        idle: the part of the workers' time that was not spent in the dataset's __getitem__;
        late: seconds that a sample took longer than it was to, a mean: sleeps end late, later where cores are busy;
        limit: samples a second if neither were;
        digest: of all batches, in their order.
    """
    multiprocessing.set_start_method("fork", force=True)  # workers share the words of Busy
    sharpen()
    sleeps = SKEWS[case].sleeps((batches + AHEAD * workers) * batch_size, seconds)
    busy = Busy(workers)
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
    if loader in ("shmloader-steal", "shmloader-chunked"):
        options["schedule"] = "steal"
    if loader == "shmloader-chunked":
        options["chunk_size"] = chunk_size
    first = 2 * workers
    seen = hashlib.sha256()
    made = time.perf_counter()
    iterator = iter(_class(loader)(Uneven(sleeps, busy), **options))
    for k in range(batches):
        if k == first:
            began, busy_before = time.perf_counter(), busy.seconds()
        batch = next(iterator)
        if k == 0:
            to_first = time.perf_counter() - made
        seen.update(batch.numpy())
    took, worked = time.perf_counter() - began, busy.seconds() - busy_before
    timed = sleeps[first * batch_size : batches * batch_size]
    samples, asleep = len(timed), sum(timed)
    return {
        "first": to_first,
        "samples_per_second": samples / took,
        "idle": 1 - worked / (workers * took),
        "late": (worked - asleep) / samples,
        "limit": workers * samples / asleep,
        "digest": seen.hexdigest(),
    }


def one_worker(batches: int, batch_size: int) -> dict[str, str]:
    """The digest that all must have: torch's batches, made by one worker without sleeping."""
    multiprocessing.set_start_method("fork", force=True)
    data = Uneven([0.0] * (batches * batch_size), Busy(1))
    seen = hashlib.sha256()
    for batch in DataLoader(data, batch_size=batch_size, num_workers=1):
        seen.update(batch.numpy())
    return {"digest": seen.hexdigest()}


def _class(loader: str) -> Any:
    if loader == "torch":
        return DataLoader
    import shmloader

    return shmloader.DataLoader
