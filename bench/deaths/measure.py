"""Kills the worker that makes the next batch, and times until the batch is begun again, or the error is raised.
This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from torch.utils.data import Dataset

import shmloader
from bench.core.cases import ENDLESS

INTERRUPTIBLE = 0.02  # seconds that an item takes whose worker is to die over it


class Clocked(Dataset[float]):
    """Each item tells when it was begun, and takes long enough to be interrupted."""

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> float:
        began = time.monotonic()
        time.sleep(INTERRUPTIBLE)
        return began


def deaths(start_method: str, times: int) -> dict[str, list[float]]:
    """Kill the worker that makes the next batch, again and again, and see how long it takes to be over it.

    Returns, each a list of seconds:
        claimed: from the kill to the batch being begun again by the worker in its place (on_worker_death="respawn");
        started: from start() of a bare process to its first line, which is no part of ours;
        raised: from the kill to the exception in the trainer (on_worker_death="raise").
    """
    context: Any = multiprocessing.get_context(start_method)
    options: dict[str, Any] = {"batch_size": None, "num_workers": 1, "prefetch_factor": 1}
    options["multiprocessing_context"] = start_method
    claimed, started, raised = [], [], []
    with shmloader.DataLoader(Clocked(), on_worker_death="respawn", **options) as loader:
        batches = iter(loader)
        for _ in range(times):
            next(batches)
            next(batches)
            time.sleep(INTERRUPTIBLE / 4)  # the next one is being made
            killed = time.monotonic()
            batches._workers[0].kill()
            claimed.append(next(batches) - killed)
    for _ in range(times):
        here, sender = context.Pipe(duplex=False)
        process = context.Process(target=_say_when, args=(sender,))
        began = time.monotonic()
        process.start()
        started.append(here.recv() - began)
        process.join()
        here.close()
        sender.close()
    for _ in range(times):
        with shmloader.DataLoader(Clocked(), **options) as loader:
            batches = iter(loader)
            next(batches)
            time.sleep(INTERRUPTIBLE / 4)
            killed = time.monotonic()
            batches._workers[0].kill()
            try:
                while True:
                    next(batches)
            except RuntimeError:
                raised.append(time.monotonic() - killed)
    return {"claimed": claimed, "started": started, "raised": raised}


def _say_when(found: Any) -> None:
    found.send(time.monotonic())
