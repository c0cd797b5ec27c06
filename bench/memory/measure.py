"""Runs an epoch over a dataset as lists or frozen, and measures the memory (PSS) of all ranks with their workers.
This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import random
import statistics
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.core import session

BATCH = 1000
SAMPLE_BYTES = 190  # of a sample's path, label and boxes in a pickle, about
ACCESSES = 20_000  # of which the time is taken
M_TRIM_THRESHOLD = -1  # <malloc.h>
TRIMMED = 128 << 10  # bytes at the heap's end that a process may keep: glibc's default, which it then raises


class Detection(Dataset[int]):
    """Paths, labels and boxes, as lists."""

    def __init__(self, samples: int) -> None:
        drawn = random.Random(0)
        self.samples = [(f"train/n{k % 1000:08}/n{k % 1000:08}_{k:010}.JPEG", k % 1000) for k in range(samples)]
        self.boxes = [[[drawn.random() for _ in range(4)] for _ in range(k % 5)] for k in range(samples)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        path, label = self.samples[index]
        return label + len(path) + len(self.boxes[index])


class Nothing(Dataset[int]):
    """As many samples, of nothing."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> int:
        return index


def memory(what: str, megabytes: int, workers: int, ranks: int, start_method: str) -> dict[str, float]:
    """Run one epoch, and look at the memory before its workers end.

    Args:
        what: "lists", "frozen", or "nothing": a dataset that has no memory.
        megabytes: About how large the dataset's pickle is.
        workers: Of each rank.
        ranks: How many processes train on it, each with all samples.
        start_method: Of the workers.

    Returns:
        memory: bytes of all processes together (proportional set size).  A page that several map counts once.
        pickled: bytes of the dataset's pickle, before it was frozen;
        freeze: seconds that freezing takes; access: seconds that `dataset[i]` takes, the median of five;
        epoch: seconds from iter() to the last batch.
    """
    # After a process has freed a large list, glibc keeps up to 64 MB that it frees later.  That is no dataset's memory.
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, TRIMMED)
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (what, megabytes, workers, ranks, start_method, f"{folder}/meet", found)
        others = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(ranks)]
        for process in others:
            process.start()
        result: dict[str, float] = found.get()
        for process in others:
            process.join()
    return result


def _rank(
    rank: int, what: str, megabytes: int, workers: int, ranks: int, start_method: str, meet: str, found: Any
) -> None:
    import shmloader

    torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
    samples = max(BATCH, megabytes * 1_000_000 // SAMPLE_BYTES)
    dataset: Any = Nothing(samples) if what == "nothing" else Detection(samples)
    pickled = len(pickle.dumps(dataset)) if rank == 0 else 0
    began = time.perf_counter()
    if what == "frozen":
        shmloader.freeze(dataset)
    froze = time.perf_counter() - began
    loader = shmloader.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, multiprocessing_context=start_method
    )
    began = time.perf_counter()
    batches = iter(loader)
    for _ in range(len(loader) - 1):
        next(batches)
    torch.distributed.barrier()  # all workers of all ranks have made their batches, and live
    if rank == 0:
        result = {"memory": float(session.memory(os.getsid(0))), "pickled": float(pickled), "freeze": froze}
        found.put(result | {"access": _access(dataset, samples), "epoch": time.perf_counter() - began})
    torch.distributed.barrier()
    del batches
    torch.distributed.destroy_process_group()


def _access(dataset: Any, samples: int) -> float:
    indices = [random.randrange(samples) for _ in range(ACCESSES)]
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for index in indices:
            dataset[index]
        took.append((time.perf_counter() - began) / ACCESSES)
    return statistics.median(took)
