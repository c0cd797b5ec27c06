"""What is timed: samples made of files on disk, in this process by turns, and batches from workers.

These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bench.core import jpegs, session
from bench.core.loaders import LOADERS, OURS, TORCH, Job
from bench.recipes import dali_recipes, ways
from bench.recipes.ways import DALI
from shmloader import images

__all__ = ["load", "parts", "samples"]

SEED = 5
SLICE = 8  # files that one way reads before it is the other's turn
WARM_UP = 2  # batches a worker that a loader makes before it is timed
LEAST = 24  # batches that are timed: workers are some batches ahead at either end


def samples(recipe: str, by: list[str], folder: str, seconds: float) -> dict[str, float]:
    """Microseconds of processor time a sample, of each way, in one thread on one core.

    The turns are short, so that a disturbance of the machine meets all ways.  DALI has its own process, because its
    threads work on the next batch during the turns of the other ways.
    """
    _settle()
    files = jpegs.files(Path(folder))
    makers = {way: _maker(recipe, way, folder) for way in by}
    took, made = dict.fromkeys(by, 0.0), 0
    for make in makers.values():
        make(range(SLICE))  # to warm up
    while made == 0 or min(took.values()) < seconds:
        for begin in range(0, len(files) - SLICE + 1, SLICE):
            for way, make in makers.items():
                _seed(SEED + made)
                before = time.process_time()
                make(range(begin, begin + SLICE))
                took[way] += time.process_time() - before
            made += SLICE
    return {way: 1e6 * spent / made for way, spent in took.items()}


def _settle() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


def _maker(recipe: str, way: str, folder: str) -> Callable[[range], None]:
    """What makes the samples of SLICE files.  DALI chooses them itself."""
    if way == DALI:
        made = dali_recipes.batches(recipe, jpegs.files(Path(folder)), SLICE, threads=1)
        return lambda _: next(made)
    dataset = ways.dataset(recipe, way, folder)

    def make(indices: range) -> None:
        for index in indices:
            dataset[index]

    return make


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def parts(recipe: str, folder: str) -> dict[str, float]:
    """Microseconds of processor time of each part of a fused sample: what explain(measure=True) says."""
    _settle()
    _seed(SEED)
    from torchvision import transforms

    from bench.recipes.recipes import RECIPES

    fused: Any = images.fuse(ways.samples(folder, RECIPES[recipe].open(transforms)))
    lines = re.findall(r"^  (.*): (\d+) us$", fused.explain(measure=True), re.MULTILINE)
    found: dict[str, float] = {}
    for name, cost in lines:
        part = re.sub(r"^view \d+, ", "", name)  # all views' parts of a name are one part
        found[part] = found.get(part, 0) + float(cost)
    return found


class _Repeated(Dataset[Any]):
    """A dataset again and again."""

    def __init__(self, dataset: Any, length: int) -> None:
        self._dataset = dataset
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        sample = self._dataset[index % len(self._dataset)]
        return [_plain(view) for view in sample] if isinstance(sample, list) else _plain(sample)


def _plain(image: Any) -> torch.Tensor:
    plain: torch.Tensor = image.as_subclass(torch.Tensor)  # v2 gives tensors of a class of its own
    return plain


def load(recipe: str, way: str, folder: str, seconds: float, workers: int, batch_size: int) -> dict[str, float]:
    """A loader with workers: ours where the dataset is fused, DALI's own, torch's otherwise.

    Returns:
        images_per_second; cpu: microseconds of processor time an image, of this process and its workers.
    """
    batches = _batches(recipe, way, folder, workers, batch_size)
    for _ in range(WARM_UP * workers):
        next(batches)
    (cpu, _), begin, count = session.used(os.getsid(0)), time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds or count < LEAST:
        next(batches)
        count += 1
    cpu = session.used(os.getsid(0))[0] - cpu
    return {"images_per_second": count * batch_size / spent, "cpu": 1e6 * cpu / (count * batch_size)}


def _batches(recipe: str, way: str, folder: str, workers: int, batch_size: int) -> Iterator[Any]:
    if way == DALI:
        files = jpegs.files(Path(folder))
        several = list(chain.from_iterable([files] * -(-batch_size // len(files))))  # at least one batch an epoch
        return dali_recipes.batches(recipe, several, batch_size, threads=workers)
    dataset = _Repeated(ways.dataset(recipe, way, folder), 1 << 30)
    sample = dataset[0]
    nbytes = sum(view.nbytes for view in sample) if isinstance(sample, list) else sample.nbytes
    job = Job(dataset, batch_size, None, workers, "fork", batch_size * nbytes)
    return iter(LOADERS[OURS if way in ways.OURS else TORCH].open(job))
