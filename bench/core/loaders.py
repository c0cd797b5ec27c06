"""How the two loaders of every question, torch's and ours, are set up for a job, and why a loader cannot be measured.

All loaders are set up alike: batches in the dataset's order, PREFETCH batches for each worker, the same start method.
If a loader has no such setting, its note has the difference.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

PREFETCH = 2  # batches under way for each worker; torch's default
SPARE = 2  # slots for batches that are lent; shmloader's default
# DI-engine has its own environment, because its requirements contradict those with which we are tested.
DI_ENGINE = Path(__file__).resolve().parents[2] / ".venv-di-engine" / "bin" / "python"


@dataclass(frozen=True)
class Job:
    """The job of a loader.

    Args:
        dataset: map-style.
        batch_size: samples in a batch; batches are in the dataset's order.
        collate: None is torch's default.
        workers: processes (of SPDL's arena: threads in one process).
        start_method: of these.
        batch_bytes: of the largest batch, about.
        persistent: whether workers should outlive an epoch, if the loader can do that.
        chunk_size: how many samples a worker should make at once, if the loader can do that; None: a batch.
    """

    dataset: Dataset[Any]
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    workers: int
    start_method: str
    batch_bytes: int
    persistent: bool = False
    chunk_size: int | None = None

    @property
    def batches(self) -> BatchSampler:
        return BatchSampler(SequentialSampler(self.dataset), self.batch_size, drop_last=False)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Loader:
    """A loader that is measured.

    Args:
        label: for tables and pictures.
        open: returns an iterable for each epoch; batches are torch tensors in any nesting.
        needs: modules that it imports, besides torch.
        distributions: packages whose versions are recorded.
        note: how it differs from the others.
        hint: how to install it, if `make bench` does not.
        only: the cases that it can load; empty: all.
        own_data: whether it loads its own file and not the dataset, so that it has no ratio.
        python: of its own environment, if it has one.
    """

    label: str
    open: Callable[[Job], Iterable[Any]]
    needs: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    note: str = ""
    hint: str = ""
    only: tuple[str, ...] = ()
    own_data: bool = False
    python: Path | None = None

    def why_not(self, case: str) -> str:
        """Why it cannot be measured here; empty if it can."""
        if self.only and case not in self.only:
            return "cannot load this"
        if self.python:
            return no_di_engine()
        absent = missing(self.needs)
        return f"{absent} ({self.hint})" if absent and self.hint else absent


def missing(modules: tuple[str, ...]) -> str:
    """The missing ones of these modules, in words; empty if there is none."""
    absent = [name for name in modules if importlib.util.find_spec(name.partition(".")[0]) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def no_di_engine() -> str:
    """Why DI-engine cannot be measured; empty if it can."""
    return "" if DI_ENGINE.exists() else "DI-engine is not installed: make di-engine"


def torch_options(job: Job) -> dict[str, Any]:
    """A job as arguments of torch's loader, and of all loaders with its signature."""
    return {
        "batch_size": job.batch_size,
        "collate_fn": job.collate,
        "num_workers": job.workers,
        "prefetch_factor": PREFETCH,
        "multiprocessing_context": job.start_method,
        "persistent_workers": job.persistent,
    }


def _torch(job: Job) -> Iterable[Any]:
    return torch.utils.data.DataLoader(job.dataset, **torch_options(job))


def _shmloader(job: Job) -> Iterable[Any]:
    import shmloader

    # nothing else of ours, because another checkout may not have it
    asked: dict[str, Any] = {} if job.chunk_size is None else {"chunk_size": job.chunk_size}
    return shmloader.DataLoader(job.dataset, **asked, **torch_options(job))


TORCH, OURS = "torch", "shmloader"
LOADERS = {
    TORCH: Loader(TORCH, _torch, distributions=(TORCH,)),
    OURS: Loader(OURS, _shmloader, distributions=(OURS,)),
}
