"""What a loader is asked to load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, Dataset, SequentialSampler

PREFETCH = 2  # batches a worker is ahead; torch's default


@dataclass(frozen=True)
class Job:
    """What is to be loaded.

    Args:
        dataset: map-style.
        batch_size: samples in a batch; batches are in the dataset's order.
        collate: None is torch's default.
        workers: processes (of SPDL's arena: threads in one process).
        start_method: of these.
        batch_bytes: of the largest batch, about.
        persistent: whether workers are to outlive an epoch, where the loader can have them do so.
    """

    dataset: Dataset[Any]
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    workers: int
    start_method: str
    batch_bytes: int
    persistent: bool = False

    @property
    def batches(self) -> BatchSampler:
        return BatchSampler(SequentialSampler(self.dataset), self.batch_size, drop_last=False)  # type: ignore[arg-type]
