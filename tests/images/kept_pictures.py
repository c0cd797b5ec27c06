"""Folders of pictures with a cache: fixtures for the tests of the cache."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shmloader import images
from shmloader.images import cache
from shmloader.system import common_memory

PICTURES = 12
SIZE = 120 * 160 * 3 // 2  # bytes that one's samples take, and a little more


@pytest.fixture(autouse=True)
def own_memory(monkeypatch: pytest.MonkeyPatch) -> str:
    """Common memory of this test alone: otherwise other tests, and this user's jobs, would share it."""
    name = f"shmloader_test_{os.getpid()}_{random.SystemRandom().getrandbits(40)}"
    monkeypatch.setattr(cache, "NAME", name)
    return name


def save(path: Path, seed: int, size: tuple[int, int] = (120, 160), **options: Any) -> None:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size).save(path, "JPEG", **options)


@pytest.fixture
def root(tmp_path: Path) -> str:
    for k in range(PICTURES):
        (tmp_path / "train" / f"class{k % 2}").mkdir(parents=True, exist_ok=True)
        save(tmp_path / "train" / f"class{k % 2}" / f"{k}.jpg", k)
    return str(tmp_path / "train")


def folder(root: str, **options: Any) -> images.ImageFolder:
    return images.ImageFolder(root, images.training(40), **options)


def samples(dataset: Any, seed: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [dataset[index][0] for index in range(len(dataset))]


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def counted(work: Callable[[], Any]) -> dict[str, int]:
    before = images.counts()
    work()
    return {name: count - before[name] for name, count in images.counts().items()}


def check(is_so: bool) -> None:
    assert is_so


ALL_CACHED = {"decoded": 0, "cached": PICTURES, "pillow": 0}
ALL_DECODED = {"decoded": PICTURES, "cached": 0, "pillow": 0}


def warned(work: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [str(warning.message) for warning in found if warning.category is RuntimeWarning]


def memories(name: str) -> list[str]:
    """Descriptors of this user's processes on common memory of this name."""
    found = []
    for pid in common_memory.processes_of(os.getuid()):
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{number}")
                found += [f"{pid}/{number}"] if link.startswith(f"/memfd:{name}") else []
        except OSError:
            continue
    return found
