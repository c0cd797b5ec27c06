"""Measures what a batch costs with each number of workers, batches in flight, tensors, samples or sequences (GROWS).
These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
from torch.utils.data import Dataset

import shmloader
from bench.core import session as processes
from bench.core.cases import ENDLESS
from bench.core.loaders import SPARE

NAP = 0.004  # seconds that a simulated sample takes
TOTAL = 1024  # batches of one such sample each, however many workers share them
FEW = 2  # workers where their number is not what grows
WINDOW = 5_000  # batches over which the cost at a point of a long run is taken
GROWS = {
    "workers": (1, 2, 4, 8, 16, 32, 64),
    "in_flight": (2, 4, 8, 16, 32, 64, 128, 256, 512),
    "tensors": (1, 3, 10, 30, 100, 300, 1000),
    "samples": (1, 4, 16, 64, 256, 1024, 4096),
    "sequences": (1_000, 10_000, 100_000, 1_000_000),
}


class Napping(Dataset[Any]):
    """One sample again and again; a simulated one takes its time asleep, not on a core."""

    def __init__(self, sample: Any, nap: float) -> None:
        self._sample = sample
        self._nap = nap

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> Any:
        if self._nap:
            time.sleep(self._nap)
        return self._sample


class SameIndices:
    """A batch sampler that costs nothing, so that torch's does not count for the loader."""

    def __init__(self, samples: int) -> None:
        self._indices = list(range(samples))

    def __iter__(self) -> Iterator[list[int]]:
        return repeat(self._indices)

    def __len__(self) -> int:
        return ENDLESS


def costs(what: str, most: int, seconds: float, start_method: str) -> dict[str, list[dict[str, float]]]:
    """What a batch costs at each of the points in GROWS up to `most`.

    Returns:
        points, and of each
            x: where it is;
            seconds, trainer_cpu, tree_cpu: of a batch, by the clock and of processor time: of this process, and of it
            and its workers;
            resident: bytes of this process's memory.
    """
    points = [x for x in GROWS[what] if x <= most]
    if what == "sequences":
        return {"points": _along(points, start_method)}
    return {"points": [{"x": x} | _cost(what, x, seconds, start_method) for x in points]}


def _cost(what: str, x: int, seconds: float, start_method: str) -> dict[str, float]:
    workers = x if what == "workers" else FEW
    prefetch = max(1, x // FEW) if what == "in_flight" else 2
    with _loader(
        workers,
        prefetch,
        tensors=x if what == "tensors" else 1,
        samples=x if what == "samples" else 1,
        nap=NAP if what == "workers" else 0,
        start_method=start_method,
    ) as loader:
        batches = iter(loader)
        # By then every worker has filled every slot it will, about, and has been through the garbage collection that
        # copies all the pages that it was forked with: a tenth of a second, once.
        _spend(batches, 2 * workers * prefetch + SPARE, 0 if what == "workers" else seconds)
        return _spend(batches, TOTAL if what == "workers" else 0, seconds)


def _along(points: list[int], start_method: str) -> list[dict[str, float]]:
    found = []
    with _loader(FEW, 2, 1, 1, 0, start_method) as loader:
        batches, at = iter(loader), 0
        for x in points:
            while at < x:
                next(batches)
                at += 1
            found.append({"x": float(x)} | _spend(batches, WINDOW, 0))
            at += WINDOW
    return found


def _loader(
    workers: int, prefetch: int, tensors: int, samples: int, nap: float, start_method: str
) -> shmloader.DataLoader[Any]:
    fields = [torch.ones(()) for _ in range(tensors)]
    sample: Any = fields[0] if tensors == 1 else {f"field{k}": field for k, field in enumerate(fields)}
    return shmloader.DataLoader(
        Napping(sample, nap),
        batch_sampler=SameIndices(samples),
        num_workers=workers,
        prefetch_factor=prefetch,
        multiprocessing_context=start_method,
    )


def _spend(batches: Iterator[Any], least: int, seconds: float) -> dict[str, float]:
    """Take batches, this many and for this long at least."""
    session, count = os.getsid(0), 0
    (tree_cpu, _), cpu, start = processes.used(session), time.process_time(), time.perf_counter()
    end = start + seconds
    while count < least or time.perf_counter() < end:
        next(batches)
        count += 1
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        "seconds": took / count,
        "trainer_cpu": cpu / count,
        "tree_cpu": (processes.used(session)[0] - tree_cpu) / count,
        "resident": float(processes.resident()),
    }
