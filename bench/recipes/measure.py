"""What is timed: samples made of files on disk, in this process by turns, and batches from workers.

These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import os
import random
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bench.core import jpegs
from bench.core.loaders import LOADERS, OURS, TORCH, Job
from bench.recipes.recipes import RECIPES
from shmloader import images

__all__ = ["FAST", "FLOOR", "FUSED", "LOADED", "V1", "V2", "WAYS", "load", "samples"]

V1, V2, FUSED, FAST, FLOOR = "v1", "v2", "fused", "fast", "floor"
WAYS = {
    V1: "torchvision v1 (timm's recipe: timm)",
    V2: "torchvision v2",
    FUSED: "images.fuse",
    FAST: "images.fuse, exact=False",
    FLOOR: "our decoder alone",
}
LOADED = (V1, V2, FUSED, FAST)
SEED = 5
SLICE = 8  # files that one way reads before it is the other's turn
WARM_UP = 2  # batches a worker that a loader makes before it is timed
LEAST = 4  # batches that are timed


class Samples:
    """What torchvision's ImageFolder has, of files in one folder.

    Args:
        folder: where the files are.
        transform: of a PIL image.
    """

    def __init__(self, folder: str, transform: Any) -> None:
        self.samples = [(path, 0) for path in jpegs.files(Path(folder))]
        self.loader = import_module("torchvision.datasets.folder").default_loader
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        return self.transform(self.loader(path)), target


class _Images(Dataset[torch.Tensor]):
    """The images of another dataset, again and again."""

    def __init__(self, dataset: Any, length: int) -> None:
        self._dataset = dataset
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        image: torch.Tensor = self._dataset[index % len(self._dataset)][0].as_subclass(torch.Tensor)
        return image


def _dataset(recipe: str, way: str, folder: str) -> Any:
    if way == FLOOR:
        return images.fuse(Samples(folder, _cropped()))
    from torchvision.transforms import v2

    version = v2 if way == V2 else import_module("torchvision.transforms")
    dataset = Samples(folder, RECIPES[recipe].open(version))
    return images.fuse(dataset, exact=way == FUSED) if way in (FUSED, FAST) else dataset


def _cropped() -> Any:
    """As little as a sample can be made by: a box, decoded to bytes."""
    from torchvision import transforms

    return transforms.Compose([transforms.RandomResizedCrop(224), transforms.PILToTensor()])


def samples(recipe: str, ways: list[str], folder: str, seconds: float) -> dict[str, float]:
    """Microseconds of processor time a sample, of each way, in one thread on one core.

    The turns are short, so that whatever else the machine does meets all ways.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    datasets = {way: _dataset(recipe, way, folder) for way in ways}
    took, made = dict.fromkeys(ways, 0.0), 0
    length = len(next(iter(datasets.values())))
    for dataset in datasets.values():
        dataset[0]  # to warm up
    while made == 0 or min(took.values()) < seconds:
        for begin in range(0, length, SLICE):
            here = range(begin, min(begin + SLICE, length))
            for way, dataset in datasets.items():
                _seed(SEED + made + begin)
                before = time.process_time()
                for index in here:
                    dataset[index]
                took[way] += time.process_time() - before
        made += length
    return {way: 1e6 * spent / made for way, spent in took.items()}


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def load(recipe: str, way: str, folder: str, seconds: float, workers: int, batch_size: int) -> dict[str, float]:
    """Images a second by a loader with workers: ours where the dataset is fused, and torch's otherwise."""
    dataset = _Images(_dataset(recipe, way, folder), 1 << 30)
    sample = dataset[0]
    loader = OURS if way in (FUSED, FAST) else TORCH
    job = Job(dataset, batch_size, None, workers, "fork", batch_size * sample.nbytes)
    iterator = iter(LOADERS[loader].open(job))
    for _ in range(WARM_UP * workers):
        next(iterator)
    begin, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds or count < LEAST:
        next(iterator)
        count += 1
    return {"images_per_second": count * batch_size / spent}
