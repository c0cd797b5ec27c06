"""The loaders that race beside torch's and ours, each by one function that opens it for the same job."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

from bench.core.cases import PERIOD, as_
from bench.core.loaders import DI_ENGINE, OURS, PREFETCH, TORCH, Job, Loader, torch_options
from bench.core.loaders import LOADERS as BOTH

SEGMENTS = 8  # of SPDL's arena; it holds on to those whose batches are in use
LONGEST = PERIOD << 18  # samples in an epoch of FFCV's, which lists them all; of whole periods and whole batches


class Fetch:
    """Makes a batch of its indices: what torch's worker does, for loaders that map a function."""

    def __init__(self, job: Job) -> None:
        self._dataset = job.dataset
        self._collate = job.collate or default_collate

    def __call__(self, indices: list[int]) -> Any:
        return self._collate([self._dataset[index] for index in indices])


def _stateful(job: Job) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader: Iterable[Any] = StatefulDataLoader(job.dataset, **torch_options(job))
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
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCH)
    options = grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=PREFETCH)
    return Tensors(batches.to_iter_dataset(reading).mp_prefetch(options))


_dataset: Dataset[Any] | None = None  # what DI-engine's workers are forked with; a job with it would send it each time


def _di_engine(job: Job) -> Iterable[Any]:
    """DI-engine is given jobs, and not a dataset.

    A chunk is a whole batch here: with smaller ones its samples come in the order in which they were finished.
    """
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


class Rows:
    """One period of a dataset as FFCV's writer wants it: tuples of arrays."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return PERIOD

    def __getitem__(self, index: int) -> tuple[Any]:
        return (np.atleast_1d(self._dataset[index].numpy()),)


class Epochs:
    """FFCV's loader, with the shapes that the others have, and without an end where a dataset has none."""

    def __init__(self, loader: Any, shape: tuple[int, ...], endless: bool) -> None:
        self._loader = loader
        self._shape = shape
        self._endless = endless

    def __iter__(self) -> Iterator[Any]:
        while True:
            for (batch,) in self._loader:
                yield batch.view(-1, *self._shape)
            if not self._endless:
                return


def _ffcv(job: Job) -> Iterable[Any]:
    """FFCV loads no dataset but a file of its own, which is written here from the dataset's samples."""
    from ffcv.fields import NDArrayField
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor
    from ffcv.writer import DatasetWriter

    rows: Any = Rows(job.dataset)
    (row,) = rows[0]
    samples: int = len(job.dataset)  # type: ignore[arg-type]
    file, path = tempfile.mkstemp(suffix=".beton")
    os.close(file)
    DatasetWriter(path, {"sample": NDArrayField(row.dtype, row.shape)}, num_workers=1).from_indexed_dataset(rows)
    loader = Loader(
        path,
        batch_size=job.batch_size,
        num_workers=job.workers,
        order=OrderOption.SEQUENTIAL,
        indices=np.arange(min(samples, LONGEST)) % PERIOD,
        os_cache=True,
        batches_ahead=PREFETCH * job.workers,
        pipelines={"sample": [NDArrayDecoder(), ToTensor()]},
    )
    return Epochs(loader, tuple(job.dataset[0].shape), samples > LONGEST)


LOADERS = {
    TORCH: BOTH[TORCH],
    "stateful": Loader("torchdata Stateful", _stateful, ("torchdata.stateful_dataloader",), ("torchdata",)),
    "nodes": Loader("torchdata nodes", _nodes, ("torchdata.nodes",), ("torchdata",)),
    "spdl": Loader("SPDL", _spdl, ("spdl.dataloader",), ("spdl-core",)),
    "spdl-arena": Loader(
        "SPDL arena", _spdl_arena, ("spdl.pipeline",), ("spdl-core",), "one process with as many threads"
    ),
    "grain": Loader("Grain", _grain, ("grain",), ("grain",), "always spawns its workers"),
    "di-engine": Loader(
        "DI-engine",
        _di_engine,
        ("ding.utils.data.dataloader",),
        note="in an environment of its own; always forks its workers, and may be two batches a worker further ahead",
        # those without an end
        only=("scalar", "small-images", "uint8-images", "float32-images", "detections", "tokens", "jpeg-pil"),
        python=DI_ENGINE,
    ),
    "ffcv": Loader(
        "FFCV",
        _ffcv,
        ("ffcv",),
        ("ffcv",),
        "copies from a file of its own by compiled code, in threads, and runs none of the dataset's Python; its "
        "start-up has the writing and compiling in it",
        "it builds where the headers of OpenCV and libturbojpeg are",
        only=("scalar", "small-images", "uint8-images", "float32-images", "epoch"),  # what its file can hold
        own_data=True,
    ),
    OURS: BOTH[OURS],
}
