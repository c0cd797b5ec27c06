"""The loaders of the profile experiment, by name, and what each needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from bench import di_engine
from bench.experiment import WORKERS, Profile
from bench.sleeping import Sleeping, jobs_of

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


def why_not(loader: str, what: Profile) -> str | None:
    """Why this loader cannot be measured here and now; None where it can."""
    if loader == "di-engine" and (missing := di_engine.missing()):
        return missing
    need = IN_FLIGHT.get(loader, 2 * WORKERS + 3) * what.batch_bytes + WORKERS * what.sample_bytes
    free = free_bytes()
    if need > free:
        return f"{need / 2**30:.1f} GiB may be needed at once, and {free / 2**30:.1f} GiB are free"
    return None


def free_bytes() -> int:
    """What is left of the machine's memory and of /dev/shm, whichever is less."""
    shared = os.statvfs("/dev/shm")
    with open("/proc/meminfo", encoding="ascii") as lines:
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    return min(available, shared.f_bavail * shared.f_frsize)
