"""Samples that sleep, so that two cores are enough for a cluster of three nodes."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset, get_worker_info

LENGTH = 1 << 24  # samples; no measurement reads as many
VALUES = 251  # a prime, so a batch in the wrong place would be noticed


class Sleeping(Dataset[torch.Tensor]):
    """Samples of zeros, after their number and their worker's.

    Args:
        seconds: What each sample takes.
        size: Its bytes.
        slow: The workers that take longer.
        factor: How many times as long.
    """

    def __init__(self, seconds: float, size: int, slow: frozenset[int], factor: float) -> None:
        self._seconds, self._size, self._slow, self._factor = seconds, size, slow, factor

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        time.sleep(self._seconds * (self._factor if worker is not None and worker.id in self._slow else 1))
        sample = torch.zeros(self._size, dtype=torch.uint8)
        sample[0] = index % VALUES
        sample[1] = worker.id if worker is not None else 0
        return sample
