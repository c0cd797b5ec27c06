"""Times the wait for first batches: of a new loader, of further epochs, and with a trainer that is busy meanwhile.
This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from torch.utils.data import Dataset

from bench.core.cases import CASES
from bench.core.loaders import LOADERS
from bench.core.throughput import job, toucher

STEP = 0.02  # seconds that a trainer computes for each batch
BUSY = 0.6  # of that time, the share in which its workers wait for the storage: so they are faster than it
EVALUATION = 0.2  # seconds


class Read(Dataset[Any]):
    """A dataset whose samples come from a storage: each keeps its worker waiting, and takes no core meanwhile.

    Args:
        dataset: The samples.
        seconds: How long each takes.
    """

    def __init__(self, dataset: Any, seconds: float) -> None:
        self.dataset, self.seconds = dataset, seconds

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return self.dataset[index]


def waits(loader: str, case: str, workers: int, start_method: str, batches: int, restarts: int) -> dict[str, Any]:
    """Wait for first batches: of a new loader, then of further epochs, without and with persistent workers.

    Returns:
        first: seconds from iter() to the first batch of the first epoch in this process;
        next, persistent: the same of each further epoch, a list;
        next_gap, persistent_gap: seconds from the last batch of one epoch to the first of the next, with all that
        lies between: the end of the old workers and the iter();
        boundary, chunked, early, steady: of a trainer that computes for STEP seconds a batch, with persistent workers
        that wait for a storage, the pause between two epochs, a list: plain; if workers share each batch (not with
        torch's loader); if iter() comes before an evaluation; and the waits for all other batches, a list.
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
    samples = CASES[case].batch_size
    ways: dict[str, dict[str, Any]] = {
        "boundary": {},
        "chunked": {"chunk_size": -(-samples // workers)},
        "early": {"evaluation": EVALUATION},
    }
    for way, options in ways.items():
        result[way], steady = pauses(loader, case, workers, start_method, batches, restarts, **options)
        result.setdefault("steady", steady)
    return result


def pauses(
    loader: str,
    case: str,
    workers: int,
    start_method: str,
    batches: int,
    restarts: int,
    chunk_size: int | None = None,
    evaluation: float = 0.0,
) -> tuple[list[float], list[float]]:
    """What a trainer waits for that computes for STEP seconds a batch: between two epochs, and for other batches.

    The pause between two epochs is the time in iter() and in the first next().  If there is an evaluation, which takes
    so many seconds, it comes between the two.
    """
    what = CASES[case]
    dataset = Read(what.dataset(batches * what.batch_size, ""), BUSY * STEP * workers / what.batch_size)
    found = job(what, dataset, workers, start_method, persistent=True)
    epochs = LOADERS[loader].open(dataclasses.replace(found, chunk_size=chunk_size))
    first: list[float] = []
    others: list[float] = []
    for epoch in range(1 + restarts):
        start = time.perf_counter()
        waiting = iter(epochs)
        in_iter = time.perf_counter() - start
        time.sleep(evaluation)
        for k in range(batches):
            start = time.perf_counter()
            next(waiting)
            waited = time.perf_counter() - start
            if epoch:
                (others if k else first).append(waited if k else in_iter + waited)
            time.sleep(STEP)
        next(waiting, None)
    return first, others
