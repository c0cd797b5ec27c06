"""Whole recipes through loaders, by fork and spawn: torch's batches, and each generator where torch's workers have it.

SHMLOADER_PHOTOGRAPHS=FOLDER takes 1,000 samples a recipe, of the JPEG files in that folder, instead of a few made ones.
"""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import shmloader
from bench.core.jpegs import files, make
from bench.recipes.recipes import RECIPES
from shmloader import images

GIVEN = os.environ.get("SHMLOADER_PHOTOGRAPHS")
SAMPLES, BATCH = (1000, 20) if GIVEN else (12, 4)
VERSIONS: dict[str, Any] = {"v1": v1, "v2": v2}


def generators(target: int) -> int:
    """What stands in a sample's place for its class: where the three generators are behind the sample."""
    numpys = np.random.get_state(legacy=True)
    state = torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode()
    return zlib.crc32(state + numpys[1].tobytes() + repr(numpys[2:]).encode(), target)


class Photographs(torchvision.datasets.ImageFolder):
    """The files again and again; its __getitem__ is the stock one."""

    def __init__(self, paths: list[str], transform: Any) -> None:
        self.samples = self.imgs = [(paths[at % len(paths)], at) for at in range(SAMPLES)]
        self.loader = torchvision.datasets.folder.default_loader
        self.transform, self.target_transform = transform, generators


class Batches(torch.utils.data.Sampler[list[int]]):
    """Batches of one recipe each, in a drawn order of recipes and samples."""

    def __init__(self, recipes: int) -> None:
        self.recipes = recipes

    def __len__(self) -> int:
        return self.recipes * SAMPLES // BATCH

    def __iter__(self) -> Any:
        batches: list[list[int]] = []
        for recipe in range(self.recipes):
            order = (torch.randperm(SAMPLES) + recipe * SAMPLES).tolist()
            batches += [order[at : at + BATCH] for at in range(0, SAMPLES, BATCH)]
        return iter([batches[at] for at in torch.randperm(len(batches)).tolist()])


def sums(loader: Any) -> list[Any]:
    """A checksum of each part of each batch, and of the trainer's generators at the end."""
    torch.manual_seed(12)
    random.seed(12)
    np.random.seed(12)
    found: list[Any] = []
    for pictures, after in loader:
        views = pictures if isinstance(pictures, list) else [pictures]
        found.append([(view.dtype, view.shape, zlib.crc32(view.contiguous().numpy())) for view in views])
        found.append(after.tolist())
    return [*found, generators(0)]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = Path(GIVEN) if GIVEN else tmp_path_factory.mktemp("photographs")
    if not GIVEN:
        make(folder, 12)
    return files(folder)


def datasets(transforms: Any, photographs: list[str]) -> tuple[Any, Any]:
    """All recipes one behind the other, plain and fused."""
    names = [name for name in RECIPES if not RECIPES[name].why_not() and (transforms is v1 or "timm" not in name)]
    plain = [Photographs(photographs, RECIPES[name].open(transforms)) for name in names]
    fused = [images.fuse(one) for one in plain]
    for one in fused:
        assert "called" not in one.explain()
    return ConcatDataset(plain), ConcatDataset(fused)


@pytest.mark.timeout(7200 if GIVEN else 900)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("workers", range(4))
def test_torchs_batches_and_generators(version: str, workers: int, photographs: list[str]) -> None:
    plain, fused = datasets(VERSIONS[version], photographs)
    options: dict[str, Any] = {"batch_sampler": Batches(len(plain.datasets)), "num_workers": workers}
    expected = sums(torch.utils.data.DataLoader(plain, **options))
    for method in ("fork", "spawn") if workers else (None,):
        got = sums(shmloader.DataLoader(fused, **options, multiprocessing_context=method))
        assert got == expected, method
