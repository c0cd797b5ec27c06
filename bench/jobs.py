"""DI-engine's loader: it is given jobs, and not a dataset, and runs in an environment of its own (di_engine.py).

A chunk is a whole batch here: with smaller ones its samples come in the order in which they were finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

from torch.utils.data import Dataset, default_collate

from bench.job import Job

NOTE = "in an environment of its own; always forks its workers, and may be two batches a worker further ahead"
CASES = (
    "scalar",
    "small-images",
    "uint8-images",
    "float32-images",
    "detections",
    "tokens",
    "jpeg-pil",
)  # without an end

_dataset: Dataset[Any] | None = None  # what its workers are forked with; a job that held it would send it each time


def open_di_engine(job: Job) -> Iterable[Any]:
    from ding.utils.data.dataloader import AsyncDataLoader

    global _dataset
    _dataset = job.dataset
    indices = count()

    def source(samples: int) -> list[Callable[[], Any]]:
        return [partial(_load, next(indices)) for _ in range(samples)]

    loader: Iterable[Any] = AsyncDataLoader(
        source,
        job.batch_size,
        "cpu",
        chunk_size=job.batch_size,
        collate_fn=job.collate or default_collate,
        num_workers=job.workers,
    )
    return loader


def _load(index: int) -> Any:
    assert _dataset is not None, "a worker that was not forked"
    return _dataset[index]
