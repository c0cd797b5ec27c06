"""Times the wait for first batches: of a new loader, of further epochs, and with a trainer that is busy meanwhile.
This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from bench.core.cases import CASES
from bench.core.loaders import LOADERS
from bench.core.throughput import job, toucher

STEP = 0.02  # seconds that a trainer computes for each batch: longer than workers need for one


def waits(loader: str, case: str, workers: int, start_method: str, batches: int, restarts: int) -> dict[str, Any]:
    """Wait for first batches: of a new loader, then of further epochs, without and with persistent workers.

    Returns:
        first: seconds from iter() to the first batch of the first epoch in this process;
        next, persistent: the same of each further epoch, a list;
        next_gap, persistent_gap: seconds from the last batch of one epoch to the first of the next, with all that
        lies between: the end of the old workers and the iter();
        boundary, overlapped, steady: of a trainer that computes for STEP seconds a batch, with persistent workers, the
        seconds that the first next() of each further epoch takes, behind iter(); the same where epochs
        overlap (with torch's loader they do not); and for all other batches, a list.
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
    result["boundary"], result["steady"] = boundaries(loader, case, workers, start_method, batches, restarts, False)
    result["overlapped"], _ = boundaries(loader, case, workers, start_method, batches, restarts, True)
    return result


def boundaries(
    loader: str, case: str, workers: int, start_method: str, batches: int, restarts: int, overlaps: bool
) -> tuple[list[float], list[float]]:
    """What a trainer waits for that computes for STEP seconds a batch: for first batches, and for the others."""
    what = CASES[case]
    found = job(what, what.dataset(batches * what.batch_size, ""), workers, start_method, persistent=True)
    epochs = LOADERS[loader].open(dataclasses.replace(found, overlaps=overlaps))
    first: list[float] = []
    others: list[float] = []
    for epoch in range(1 + restarts):
        waiting = iter(epochs)  # which is no wait: see the other figures for what it takes
        for k in range(batches):
            start = time.perf_counter()
            next(waiting)
            if epoch:
                (others if k else first).append(time.perf_counter() - start)
            time.sleep(STEP)
        next(waiting, None)
    return first, others
