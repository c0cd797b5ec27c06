"""Loaders with page-locked slots, for tests over the double in gpu_double.py."""

from __future__ import annotations

import time
from typing import Any

import torch

import shmloader


class Numbered(torch.utils.data.Dataset):
    """Item k is full of k; the items are of one size, or grow."""

    def __init__(self, length: int = 200, size: int = 500, growth: int = 0) -> None:
        self.length, self.size, self.growth = length, size, growth

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size + self.growth * index,), index)


def pinned(dataset: Any = None, **options: Any) -> shmloader.DataLoader[Any]:
    dataset = dataset or Numbered()
    return shmloader.DataLoader(dataset, **{"num_workers": 2, "batch_size": None, "pin_memory": True, **options})


def wait_for(what: Any) -> None:
    end = time.monotonic() + 100
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def settled(iterator: Any) -> None:
    """Wait until the thread has locked what it was asked to."""
    wait_for(lambda: not any(iterator._pinning._asked))
