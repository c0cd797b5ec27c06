"""What a loader is asked to load, and the two that every question has: torch's and ours.

All loaders are set up alike: batches in the dataset's order, PREFETCH batches ahead a worker, the same start method.
What cannot be asked of a loader stands in its note.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

PREFETCH = 2  # batches a worker is ahead; torch's default
SPARE = 2  # slots for batches that are lent; shmloader's default
# DI-engine has an environment of its own: what it needs is at odds with what we are tested with.
DI_ENGINE = Path(__file__).resolve().parents[2] / ".venv-di-engine" / "bin" / "python"


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
        overlaps: whether the next epoch is to be begun while this one's last batches are under way, where it can be.
    """

    dataset: Dataset[Any]
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    workers: int
    start_method: str
    batch_bytes: int
    persistent: bool = False
    overlaps: bool = False

    @property
    def batches(self) -> BatchSampler:
        return BatchSampler(SequentialSampler(self.dataset), self.batch_size, drop_last=False)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Loader:
    """One that is measured.

    Args:
        label: for tables and pictures.
        open: returns what is iterated over, once an epoch; batches are torch tensors in any nesting.
        needs: modules that it imports, besides torch.
        distributions: whose versions are noted.
        note: what is different about it.
        hint: how to install it, if `make bench` does not.
        only: the cases that it can load; empty: all.
        own_data: whether it loads a file of its own and not the dataset, so that no ratio is taken to it.
        python: of its own environment, where it has one.
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
        """Why it cannot be measured here; empty where it can."""
        if self.only and case not in self.only:
            return "cannot load this"
        if self.python:
            return no_di_engine()
        absent = missing(self.needs)
        return f"{absent} ({self.hint})" if absent and self.hint else absent


def missing(modules: tuple[str, ...]) -> str:
    """Which of these modules are not there, in words; empty where all are."""
    absent = [name for name in modules if importlib.util.find_spec(name.partition(".")[0]) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def no_di_engine() -> str:
    """Why DI-engine cannot be measured; empty where it can."""
    return "" if DI_ENGINE.exists() else "DI-engine is not installed: make di-engine"


def torch_options(job: Job) -> dict[str, Any]:
    """A job as what torch's loader, and all that have its signature, are given."""
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

    options = torch_options(job) | ({"prefetch_epochs": True} if job.overlaps else {})  # none, for other checkouts
    return shmloader.DataLoader(job.dataset, **options)


TORCH, OURS = "torch", "shmloader"
LOADERS = {
    TORCH: Loader(TORCH, _torch, distributions=(TORCH,)),
    OURS: Loader(OURS, _shmloader, distributions=(OURS,)),
}
