"""AsyncDataLoader: an endless series of batches of jobs; any free worker makes the next one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from shmloader.batch import objects
from shmloader.checks import requirements
from shmloader.dataloader import DataLoader
from shmloader.system.cleanup import ClosedByWith

try:
    from cloudpickle import dumps as _dump_code  # for what pickle cannot: lambdas, functions inside functions
except ImportError:
    _dump_code = None


class AsyncDataLoader(ClosedByWith):
    """Runs jobs in worker processes in advance, and gives their results in batches, as long as you ask for more.

    It follows DI-engine's loader of that name (`ding.utils.data.dataloader`), with the same arguments and the same use.
    Here the samples of a batch keep the order of their jobs, and an exception in a job is raised in the place of its
    batch.

    Args:
        data_source: A function that is called in this process with `batch_size`, once for each batch.  It returns a
            list of that many callables, each of which makes one sample in a worker, or of that many samples.  They are
            pickled; cloudpickle, if installed, pickles callables that pickle refuses.  StopIteration ends the loader.

        batch_size: How many samples a batch has.

        device: Where batches are delivered, as in `DataLoader`.

        chunk_size: How many samples a worker makes at once (default None: a whole batch).  Several workers make the
            chunks of a batch at the same time.  The last chunk may be smaller.

        collate_fn: Makes a batch of samples (default None: torch's `default_collate`).  With `chunk_size` it must be
            marked with `shmloader.row_wise`.

        num_workers: How many worker processes there are; 0 (default) and 1 both mean one process.

    Raises:
        ValueError: An argument is out of its range, or `data_source` returned another number of jobs.
        TypeError: Neither pickle nor cloudpickle can carry a job.

    Example:
        >>> with AsyncDataLoader(source, batch_size=64, device="cpu", chunk_size=16, num_workers=8) as loader:
        ...     batch = next(loader)
    """

    def __init__(
        self,
        data_source: Callable[[int], list[Any]],
        batch_size: int,
        device: torch.device | str,
        chunk_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size <= 0:
            raise ValueError(f"batch_size should be a positive integer, but got batch_size={batch_size!r}")
        self._loader: DataLoader[Any] = DataLoader(
            _Jobs(),
            batch_sampler=_Batches(data_source, batch_size),
            num_workers=max(1, num_workers) if isinstance(num_workers, int) else num_workers,
            collate_fn=collate_fn,
            schedule="steal" if requirements.why_not_here() is None else "round_robin",  # the order is the same
            chunk_size=chunk_size,
            device=device,
        )
        self._batches = iter(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        """End the workers and give the memory back.  Delivered batches stay valid."""
        self._loader.close()


class _Batches:
    """The source's jobs, pickled, batch by batch.  They replace a batch sampler's indices."""

    def __init__(self, source: Callable[[int], list[Any]], batch_size: int) -> None:
        self._source = source
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[bytes]]:
        return self

    def __next__(self) -> list[bytes]:
        jobs = self._source(self.batch_size)
        if len(jobs) != self.batch_size:
            raise ValueError(
                f"data_source({self.batch_size}) returned {len(jobs)} jobs. It should return {self.batch_size}."
            )
        return [_pickled(job) for job in jobs]


def _pickled(job: Any) -> bytes:
    try:
        return objects.dump_whole(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if _dump_code is None:
            raise TypeError(
                f"data_source returned a job that cannot be pickled: {job!r} ({error}). Jobs are sent to worker "
                "processes. Let it return functions from the top level of a module, or functools.partial objects of "
                "such functions. Or install cloudpickle."
            ) from error
        return bytes(_dump_code(job))


class _Jobs(Dataset[Any]):
    """Runs jobs.  A job that cannot be called is a sample already."""

    def __getitem__(self, job: bytes) -> Any:
        made = pickle.loads(job)
        return made() if callable(made) else made
