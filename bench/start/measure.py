"""Times first batches of short epochs, each of which starts its workers, and the batch of a worker that is killed.
This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

import shmloader
from bench.core import session

SAMPLES = 320  # of a short epoch
BATCH = 8
ARENA = "SPDL's arena"


class Paths(Dataset[int]):
    """A list of paths, of about so many bytes.

    Args:
        megabytes: Of the list.
        token: A file.  As long as it is there, the worker that is asked for the last sample notes the time there, under
            another name, and kills itself.
    """

    def __init__(self, megabytes: int, token: str = "") -> None:
        one = len("/data/train/n00000000/n00000000_0000000000.JPEG" + "x" * 73)
        self.paths = [
            f"/data/train/n{k % 1000:08}/n{k % 1000:08}_{k:010}.JPEG" + "x" * 73
            for k in range(max(SAMPLES, megabytes * 1_000_000 // one))
        ]
        self.token = token

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        if self.token and index == SAMPLES - 1:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.token)
                Path(f"{self.token}-at").write_text(repr(time.perf_counter()), encoding="utf-8")
                os.kill(os.getpid(), signal.SIGKILL)
        return len(self.paths[index])


def start(way: str, megabytes: int, workers: int, restarts: int) -> dict[str, Any]:
    """Iterate over short epochs, each of which starts workers.

    Args:
        way: "fork", "forkserver", "spawn"; "forkserver, frozen"; ARENA.
        megabytes: Of the dataset, about.
        workers: How many.
        restarts: Epochs after the first one.

    Returns:
        first, epoch: seconds from making the loader to the first batch, and to the end of that epoch;
        first_cpu: seconds of processor time until the first batch, of all processes;
        next, next_epoch: the same of each further epoch, from iter() on, lists;
        again: the same as next, of a new loader over the dataset, a list;
        replaced: seconds from the death of a worker until its batch has come, made by another one.
    """
    with tempfile.TemporaryDirectory() as folder:
        token = f"{folder}/token"
        dataset: Any = Paths(megabytes, "" if way == ARENA else token)
        if way == ARENA:
            return _epochs(_arena(dataset, workers), restarts)
        if "frozen" in way:
            dataset = shmloader.freeze(dataset)
        made = partial(_loader, dataset, way, workers)
        result = _epochs(made, restarts)
        result["again"] = [_epochs(made, 0)["first"] for _ in range(restarts)]
        Path(token).touch()
        for _ in made(on_worker_death="respawn"):
            came = time.perf_counter()
        result["replaced"] = came - float(Path(f"{token}-at").read_text(encoding="utf-8"))
        return result


def _loader(dataset: Any, way: str, workers: int, **options: Any) -> Any:
    return shmloader.DataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        multiprocessing_context=way.partition(",")[0],
        **options,
    )


def _arena(dataset: Any, workers: int) -> Callable[[], Any]:
    """Makes SPDL's pipeline.  What it imports is imported here, because a worker imports what this module does."""
    from bench.core.loaders import Job
    from bench.core.throughput import HEADROOM, import_modules
    from bench.peers.loaders import LOADERS

    import_modules(LOADERS["spdl-arena"])
    return partial(LOADERS["spdl-arena"].open, Job(dataset, BATCH, None, workers, "spawn", HEADROOM))


def _epochs(make: Callable[[], Any], restarts: int) -> dict[str, Any]:
    loader: Any = None
    to_first: list[float] = []
    to_last: list[float] = []
    cpu: list[float] = []
    for _ in range(1 + restarts):
        used, began = session.used(os.getsid(0))[0], time.perf_counter()
        loader = loader or make()  # SPDL's starts its process then
        iterator = iter(loader)
        next(iterator)
        to_first.append(time.perf_counter() - began)
        cpu.append(session.used(os.getsid(0))[0] - used)
        for _ in iterator:
            pass
        to_last.append(time.perf_counter() - began)
    return {
        "first": to_first[0],
        "first_cpu": cpu[0],
        "epoch": to_last[0],
        "next": to_first[1:],
        "next_epoch": to_last[1:],
    }
