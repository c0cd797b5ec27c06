"""Times next() with and without a state_dict() after it, and first batches of resumed loaders beside those of new ones.
This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler, Sampler, SequentialSampler

BATCH = 256
WARM_UP = 50  # batches: each slot has its pages by then
BLOCK = 20  # batches in a row with a state each, and then without


class Numbers(Dataset[torch.Tensor]):
    """So many samples, of next to no work: what is measured is the loader's."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def sequential(dataset: Dataset[Any]) -> dict[str, Any]:
    return {"sampler": SequentialSampler(dataset), "batch_size": BATCH}  # type: ignore[arg-type]


def random(dataset: Dataset[Any]) -> dict[str, Any]:
    return {"sampler": RandomSampler(dataset), "batch_size": BATCH}  # type: ignore[arg-type]


def batch(dataset: Dataset[Any]) -> dict[str, Any]:
    sampler: Sampler[int] = RandomSampler(dataset)  # type: ignore[arg-type]
    return {"batch_sampler": BatchSampler(sampler, BATCH, drop_last=False)}


def distributed(dataset: Dataset[Any]) -> dict[str, Any]:
    return {"sampler": DistributedSampler(dataset, num_replicas=4, rank=1), "batch_size": BATCH}


SAMPLERS: dict[str, Callable[[Dataset[Any]], dict[str, Any]]] = {
    "sequential": sequential,
    "random": random,
    "batch": batch,
    "distributed": distributed,
}


def states(loader: str, sampler: str, workers: int, seconds: float) -> dict[str, Any]:
    """Take batches, and the loader's state behind each of some and not of others, in blocks by turns.

    Returns:
        first_state: seconds of the first state_dict(), before iter(); state: of one between two batches, the median;
        step_with, step_without: of a next() with a state behind it, and of one without; state_bytes: its size, pickled;
        batches.
    """
    loads = _loader(loader, Numbers(1 << 20), sampler, workers, "fork")
    began = time.perf_counter()
    loads.state_dict()
    first = time.perf_counter() - began
    batches = iter(loads)
    for _ in range(WARM_UP):
        next(batches)
    took: list[float] = []
    steps: dict[bool, list[float]] = {True: [], False: []}
    state: Any = None
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for asks in (True, False):
            for _ in range(BLOCK):
                start = time.perf_counter()
                given = next(batches, None)
                if given is None:
                    batches = iter(loads)
                    break
                if asks:
                    asked = time.perf_counter()
                    state = loads.state_dict()
                    took.append(time.perf_counter() - asked)
                steps[asks].append(time.perf_counter() - start)
    return {
        "first_state": first,
        "state": statistics.median(took),
        "step_with": statistics.median(steps[True]),
        "step_without": statistics.median(steps[False]),
        "state_bytes": len(pickle.dumps(state)),
        "batches": len(took) + len(steps[False]),
    }


def resumes(loader: str, samples: int, part: float, workers: int, start_method: str, times: int) -> dict[str, Any]:
    """Wait for first batches, of new loaders and of new loaders that go on in an epoch, by turns.

    The state is that of a loader which has served this part of an epoch.

    Returns:
        fresh, resumed: seconds until the first batch, from the loader's making on; lists.
    """
    dataset = Numbers(samples)
    serves = _loader(loader, dataset, "random", workers, "fork")
    batches = iter(serves)
    for _ in range(int(samples / BATCH * part)):
        next(batches)
    state = serves.state_dict()
    del batches, serves
    took: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(times):
        for goes_on in (False, True):
            start = time.perf_counter()
            loads = _loader(loader, dataset, "random", workers, start_method)
            if goes_on:
                loads.load_state_dict(state)
            batches = iter(loads)
            next(batches)
            took[goes_on].append(time.perf_counter() - start)
            del batches, loads
    return {"fresh": took[False], "resumed": took[True]}


def _loader(kind: str, dataset: Dataset[Any], sampler: str, workers: int, start_method: str) -> Any:
    options = SAMPLERS[sampler](dataset) | {"num_workers": workers, "multiprocessing_context": start_method}
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, **options)
    import shmloader

    return shmloader.DataLoader(dataset, **options)
