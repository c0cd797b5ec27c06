"""The loaders that race, each by one function that opens it for the same job.

They are set up alike: batches in the dataset's order, PREFETCH batches ahead a worker, the same start method.  What an
adapter cannot ask for its loader, it says.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from bench import converted, di_engine, jobs
from bench.job import PREFETCH, Job
from bench.samples import as_

SEGMENTS = 8  # of SPDL's arena; it holds on to those whose batches are in use


@dataclass(frozen=True)
class Loader:
    """One of those that race.

    Args:
        label: for tables and pictures.
        open: returns what is iterated over, once an epoch; batches are torch tensors in any nesting.
        needs: modules that it imports, besides torch.
        distributions: whose versions are noted.
        note: what is different about it.
        hint: how it is to be had, where that is not by `make bench`.
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
            return di_engine.missing() or ""
        absent = missing(self.needs)
        return f"{absent} ({self.hint})" if absent and self.hint else absent


def missing(modules: tuple[str, ...]) -> str:
    """Which of these modules are not there, in words; empty where all are."""
    absent = [name for name in modules if importlib.util.find_spec(name.partition(".")[0]) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Fetch:
    """Makes a batch of its indices: what torch's worker does, for loaders that map a function."""

    def __init__(self, job: Job) -> None:
        self._dataset = job.dataset
        self._collate = job.collate or default_collate

    def __call__(self, indices: list[int]) -> Any:
        return self._collate([self._dataset[index] for index in indices])


def _torch_options(job: Job) -> dict[str, Any]:
    return {
        "batch_size": job.batch_size,
        "collate_fn": job.collate,
        "num_workers": job.workers,
        "prefetch_factor": PREFETCH,
        "multiprocessing_context": job.start_method,
        "persistent_workers": job.persistent,
    }


def _torch(job: Job) -> Iterable[Any]:
    return torch.utils.data.DataLoader(job.dataset, **_torch_options(job))


def _shmloader(job: Job) -> Iterable[Any]:
    import shmloader

    return shmloader.DataLoader(job.dataset, **_torch_options(job))


def _stateful(job: Job) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Iterable[Any] = StatefulDataLoader(job.dataset, **_torch_options(job))
    return loader


def _nodes(job: Job) -> Iterable[Any]:
    import torchdata.nodes as nodes

    batches = nodes.SamplerWrapper(job.batches)
    mapped = nodes.ParallelMapper(
        batches,
        Fetch(job),
        num_workers=job.workers,
        in_order=True,
        method="process",
        multiprocessing_context=job.start_method,
    )
    loader: Iterable[Any] = nodes.Loader(mapped)
    return loader


def _spdl(job: Job) -> Iterable[Any]:
    from spdl.dataloader import get_pytorch_dataloader

    loader: Iterable[Any] = get_pytorch_dataloader(
        job.dataset,
        batch_size=job.batch_size,
        collate_fn=job.collate,
        num_workers=job.workers,
        prefetch_factor=PREFETCH,
        multiprocessing_context=job.start_method,
        in_order=True,
    )
    return loader


def _spdl_arena(job: Job) -> Iterable[Any]:
    from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, run_pipeline_in_subprocess

    multiprocessing.set_start_method(job.start_method, force=True)  # the pool makes its lock for that one
    fetching = PipelineBuilder().add_source(job.batches).pipe(Fetch(job), concurrency=job.workers, output_order="input")
    loader: Iterable[Any] = run_pipeline_in_subprocess(
        fetching.add_sink(PREFETCH).get_config(),
        num_threads=job.workers,
        mp_context=job.start_method,
        arena=SharedMemorySegmentPool(segment_size=job.batch_bytes, count=SEGMENTS),
    )
    return loader


class Arrays:
    """A dataset's samples as numpy arrays, which is what Grain stacks into shared memory."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return as_(torch.Tensor.numpy, self._dataset[index])


class CollateArrays:
    """A collate function of torch tensors, for samples that are arrays and a batch that is to be of arrays."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        return as_(torch.Tensor.numpy, self._collate(as_(torch.from_numpy, samples)))


class Tensors:
    """Batches of arrays as batches of tensors over them."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield as_(torch.from_numpy, batch)


def _grain(job: Job) -> Iterable[Any]:
    import grain

    batches = grain.MapDataset.source(Arrays(job.dataset)).batch(
        job.batch_size, batch_fn=CollateArrays(job.collate) if job.collate else None
    )
    # Without this each worker would read 500 batches ahead, with 16 threads.
    ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCH)
    options = grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=PREFETCH)
    return Tensors(batches.to_iter_dataset(ahead).mp_prefetch(options))


PEERS = {
    "torch": Loader("torch", _torch, distributions=("torch",)),
    "stateful": Loader("torchdata Stateful", _stateful, ("torchdata.stateful_dataloader",), ("torchdata",)),
    "nodes": Loader("torchdata nodes", _nodes, ("torchdata.nodes",), ("torchdata",)),
    "spdl": Loader("SPDL", _spdl, ("spdl.dataloader",), ("spdl-core",)),
    "spdl-arena": Loader(
        "SPDL arena", _spdl_arena, ("spdl.pipeline",), ("spdl-core",), "one process with as many threads"
    ),
    "grain": Loader("Grain", _grain, ("grain",), ("grain",), "always spawns its workers"),
    "di-engine": Loader(
        "DI-engine",
        jobs.open_di_engine,
        ("ding.utils.data.dataloader",),
        note=jobs.NOTE,
        only=jobs.CASES,
        python=di_engine.PYTHON,
    ),
    "ffcv": Loader(
        "FFCV",
        converted.open_ffcv,
        ("ffcv",),
        ("ffcv",),
        converted.NOTE,
        converted.HINT,
        converted.CASES,
        own_data=True,
    ),
}
OURS = "shmloader"
LOADERS = PEERS | {OURS: Loader(OURS, _shmloader, distributions=(OURS,))}
