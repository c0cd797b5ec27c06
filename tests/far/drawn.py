"""A dataset whose samples show who made them, and from which seeds."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info


class Drawn(Dataset[Any]):
    """Samples of many kinds, drawn at random."""

    def __init__(self, length: int = 26) -> None:
        self.length = length
        self.epoch = -1

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        return {
            "picture": torch.rand(3, 8, 8),
            "target": numpy.random.rand(2),
            "drawn": random.random(),
            "name": f"sample {index}",
            "worker": (-1 if info is None else info.id, 0 if info is None else info.num_workers),
            "epoch": self.epoch,
            "empty": torch.empty(0, 2),
        }
