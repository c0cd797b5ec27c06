"""How fast one loader delivers uneven samples, and for how long its workers have nothing to do.

Runs in a process of its own, see child.py.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from typing import Any

from torch.utils.data import DataLoader

from bench.sleeping import sharpen
from bench.uneven import SKEWS, Busy, Uneven

LOADERS = {
    "torch": "torch",
    "shmloader": "shmloader, in turns",
    "shmloader-steal": "shmloader, steal",
    "shmloader-chunked": "shmloader, steal, chunks",
}
AHEAD = 4  # batches a worker that the dataset has beyond those that are measured; a loader asks for two ahead


def throughput(
    loader: str, case: str, seconds: float, batches: int, batch_size: int, chunk_size: int, workers: int
) -> dict[str, Any]:
    """Take so many batches as fast as they come.

    What is timed begins when each worker may have delivered two and ends with the last; the dataset has more than
    that, so that work is never short while it is.

    Returns:
        samples_per_second;
        idle: the part of the workers' time that was not spent in the dataset's __getitem__;
        late: seconds that a sample took longer than it was to, a mean: sleeps end late, later where cores are busy;
        limit: samples a second if neither were;
        digest: of all batches, in their order.
    """
    multiprocessing.set_start_method("fork", force=True)  # workers share the words of Busy
    sharpen()
    sleeps = SKEWS[case].sleeps((batches + AHEAD * workers) * batch_size, seconds)
    busy = Busy(workers)
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
    if loader in ("shmloader-steal", "shmloader-chunked"):
        options["schedule"] = "steal"
    if loader == "shmloader-chunked":
        options["chunk_size"] = chunk_size
    first = 2 * workers
    seen = hashlib.sha256()
    iterator = iter(_class(loader)(Uneven(sleeps, busy), **options))
    for k in range(batches):
        if k == first:
            begun, busy_before = time.perf_counter(), busy.seconds()
        seen.update(next(iterator).numpy())
    took, worked = time.perf_counter() - begun, busy.seconds() - busy_before
    timed = sleeps[first * batch_size : batches * batch_size]
    samples, asleep = len(timed), sum(timed)
    return {
        "samples_per_second": samples / took,
        "idle": 1 - worked / (workers * took),
        "late": (worked - asleep) / samples,
        "limit": workers * samples / asleep,
        "digest": seen.hexdigest(),
    }


def one_worker(batches: int, batch_size: int) -> dict[str, str]:
    """The digest that all must have: torch's batches, made by one worker without sleeping."""
    multiprocessing.set_start_method("fork", force=True)
    data = Uneven([0.0] * (batches * batch_size), Busy(1))
    seen = hashlib.sha256()
    for batch in DataLoader(data, batch_size=batch_size, num_workers=1):
        seen.update(batch.numpy())
    return {"digest": seen.hexdigest()}


def _class(loader: str) -> Any:
    if loader == "torch":
        return DataLoader
    import shmloader

    return shmloader.DataLoader
