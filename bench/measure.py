"""What is measured of a loader's epochs and of its workers' deaths.  These run in a process of their own, see child.py.

They import neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

from torch.utils.data import Dataset

import shmloader
from bench.adapters import LOADERS
from bench.cases import CASES, ENDLESS
from bench.race import job, toucher

INTERRUPTIBLE = 0.02  # seconds that an item takes whose worker is to die over it


def waits(loader: str, case: str, workers: int, start_method: str, batches: int, restarts: int) -> dict[str, Any]:
    """Wait for first batches: of a new loader, then of further epochs, without and with persistent workers.

    Returns:
        first: seconds from iter() to the first batch of the first epoch in this process;
        next, persistent: the same of each further epoch, a list;
        next_gap, persistent_gap: seconds from the last batch of one epoch to the first of the next, with all that
        lies between: the end of the old workers and the iter().
    """
    what = CASES[case]
    dataset = what.dataset(batches * what.batch_size, "")
    pages = toucher(what.batch(dataset, 0))
    result: dict[str, Any] = {}
    for persistent in (False, True):
        epochs = LOADERS[loader].open(job(what, dataset, workers, start_method, persistent))
        from_iter: list[float] = []
        from_last: list[float] = []
        last = 0.0
        for _ in range(1 + restarts):
            start = time.perf_counter()
            for k, batch in enumerate(epochs):
                if k == 0:
                    now = time.perf_counter()
                    from_iter.append(now - start)
                    from_last.append(now - last)
                pages(batch)
                last = time.perf_counter()
        if persistent:
            result |= {"persistent": from_iter[1:], "persistent_gap": from_last[1:]}
        else:
            result |= {"first": from_iter[0], "next": from_iter[1:], "next_gap": from_last[1:]}
    return result


class Clocked(Dataset[float]):
    """Each item tells when it was begun, and takes long enough to be interrupted."""

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> float:
        begun = time.monotonic()
        time.sleep(INTERRUPTIBLE)
        return begun


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
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_say_when, args=(there,))
        began = time.monotonic()
        process.start()
        started.append(here.recv() - began)
        process.join()
        here.close()
        there.close()
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


def _say_when(there: Any) -> None:
    there.send(time.monotonic())
