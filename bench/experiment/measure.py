"""One cell of the experiment: a loader, and a consumer that sleeps in place of an inference.

Samples take their time without using the processor.  This runs in a process of its own, see core/child.py, for
DI-engine in another environment.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from bench.core._probe import touch_pages
from bench.core.cases import ENDLESS
from bench.core.loaders import no_di_engine
from bench.core.session import sharpen
from bench.experiment.profiles import PROFILES, WORKERS, Profile

LOADERS = {
    "torch-0": "torch, no workers",
    "torch": f"torch, {WORKERS} workers",
    "shmloader": f"shmloader, {WORKERS} workers, a batch each",
    "shmloader-chunked": f"shmloader, {WORKERS} workers, chunks, whoever is free",
    "shmloader-async": f"shmloader's AsyncDataLoader, {WORKERS} workers, chunks",
    "di-engine": f"DI-engine's AsyncDataLoader, {WORKERS} workers, chunks",
}
SERIAL = "torch-0"
# Batches that may exist at once.  torch: two a worker and the trainer's; a ring has spare slots.  DI-engine: two a
# worker in its queue, one in each worker, the parts of as many in the manager.
IN_FLIGHT = {"torch-0": 2, "di-engine": 4 * WORKERS}

_asleep: Sleeping | None = None  # what the workers of this process are forked with, and their jobs read


class Sleeping(Dataset[torch.Tensor]):
    """One sample again and again, by reference, each time after a sleep."""

    def __init__(self, sample: torch.Tensor, seconds: float) -> None:
        self._sample = sample
        self._seconds = seconds

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._seconds)
        return self._sample


def jobs_of(data: Sleeping) -> Callable[[int], list[Callable[[], torch.Tensor]]]:
    """A data source: asked for n, n callables that each load the next sample.

    A job travels as its index alone: the data are those that the worker was forked with.
    """
    global _asleep
    _asleep = data
    indices = itertools.count()
    return lambda samples: [functools.partial(_load, next(indices)) for _ in range(samples)]


def _load(index: int) -> torch.Tensor:
    assert _asleep is not None, "a worker that was not forked"
    return _asleep[index]


@contextmanager
def opened(loader: str, what: Profile, data: Sleeping) -> Iterator[Iterator[Any]]:
    """Start a loader; what is got is the iterator over its batches, and the loader is closed in the end."""
    options: dict[str, Any] = {"batch_size": what.batch_size, "num_workers": WORKERS}
    if loader == "torch-0":
        yield iter(DataLoader(data, batch_size=what.batch_size))
    elif loader == "torch":
        yield iter(DataLoader(data, **options))
    elif loader == "di-engine":
        with closing(_di_engine()(jobs_of(data), device="cpu", chunk_size=what.chunk_size, **options)) as batches:
            yield batches
        for worker in batches.worker:  # it ends them wherever they are, also between a file's creation and its unlink
            for name in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):
                name.unlink()
    else:
        import shmloader

        ours: Any = shmloader
        if loader == "shmloader-async":
            with ours.AsyncDataLoader(jobs_of(data), device="cpu", chunk_size=what.chunk_size, **options) as batches:
                yield batches
        else:
            if loader == "shmloader-chunked":
                options |= {"schedule": "steal", "chunk_size": what.chunk_size}
            with ours.DataLoader(data, **options) as batches:
                yield iter(batches)


def _di_engine() -> Any:
    from ding.utils.data.dataloader import AsyncDataLoader

    return AsyncDataLoader


def why_not(loader: str, what: Profile) -> str:
    """Why this loader cannot be measured here and now; empty where it can."""
    if loader == "di-engine" and (missing := no_di_engine()):
        return missing
    need = IN_FLIGHT.get(loader, 2 * WORKERS + 3) * what.batch_bytes + WORKERS * what.sample_bytes
    free = free_bytes()
    if need > free:
        return f"{need / 2**30:.1f} GiB may be needed at once, and {free / 2**30:.1f} GiB are free"
    return ""


def free_bytes() -> int:
    """What is left of the machine's memory and of /dev/shm, whichever is less."""
    shared = os.statvfs("/dev/shm")
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return min(available, shared.f_bavail * shared.f_frsize)


def cell(loader: str, case: str, flow: str, scale: float, iterations: int, ignored: int) -> dict[str, float]:
    """Load so many batches, the first of them not counted.

    Returns:
        first: seconds from the loader's creation to its first batch;
        counted: batches that the rest is about;
        total, blocked: their seconds, and how many of these were spent in next();
        touch: seconds to touch every page of a batch, a mean; they are part of its inference;
        late: batches whose pages took longer to touch than the inference was to last.
    """
    multiprocessing.set_start_method("fork", force=True)  # jobs read what their worker was forked with
    sharpen()
    if loader == "di-engine":
        # Its workers, forked, share large samples by a parallel copy, and hang in OpenMP if this process has used that.
        torch.set_num_threads(1)
    what = PROFILES[case]
    inference = what.inference_seconds(flow, scale)
    data = Sleeping(what.sample(), what.sample_seconds(scale))
    blocked = touching = started = 0.0
    late = 0
    created = due = time.perf_counter()
    with opened(loader, what, data) as batches:
        for k in range(iterations):
            asked = time.perf_counter()
            if k == ignored:
                blocked, touching, late, started = 0.0, 0.0, 0, asked
            batch = next(batches)  # the batch before it is given back only now, as in a training loop
            got = time.perf_counter()
            if k == 0:
                first, due = got - created, asked
                if tuple(batch.shape) != (what.batch_size, what.sample_bytes):
                    raise AssertionError(f"{loader}: not the batch that was to be loaded: {tuple(batch.shape)}")
            # From when the last inference was to end, not from now: a sleep that was too long shortens the next.
            due += got - asked + inference
            blocked += got - asked
            touch_pages(batch.data_ptr(), batch.nbytes)
            touched = time.perf_counter()
            touching += touched - got
            late += touched - got > inference
            time.sleep(max(0.0, due - touched))
        total = time.perf_counter() - started
    counted = iterations - ignored
    return {
        "first": first,
        "counted": counted,
        "total": total,
        "blocked": blocked,
        "touch": touching / counted,
        "late": late,
    }


def overshoot(seconds: float, workers: int, at_least: float) -> dict[str, float]:
    """How much too long a sleep is, where so many processes sleep at once and nothing else runs.

    Args:
        seconds: to sleep.
        workers: processes.
        at_least: seconds that each of them goes on for.

    Returns:
        overshoot: seconds, the mean of all sleeps.
    """
    sharpen()
    context: Any = multiprocessing.get_context("fork")
    with context.Pool(workers) as pool:
        means = pool.starmap(_oversleep, [(seconds, at_least)] * workers, chunksize=1)
    return {"overshoot": sum(means) / workers}


def _oversleep(seconds: float, at_least: float) -> float:
    times, began = 0, time.perf_counter()
    while times < 3 or time.perf_counter() < began + at_least:
        time.sleep(seconds)
        times += 1
    return (time.perf_counter() - began) / times - seconds
