"""What is measured of a loader.  These run in a process of their own, see child.py.

They import neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from typing import Any

from torch.utils.data import Dataset

import shmloader
from bench.cases import CASES, ENDLESS, Case, Repeated, loader_class
from shmloader._probe import touch_pages

PREFETCH = 2  # batches a worker is ahead; torch's default
SPARE = 2  # slots for batches that are lent; shmloader's default
INTERRUPTIBLE = 0.02  # seconds that an item takes whose worker is to die over it
WARM_UP = 0.2  # of a measurement's length, at least
WARM_UP_ROUNDS = 4  # through the ring, at least: each worker maps each slot's pages when it first fills it


def ring_slots(workers: int) -> int:
    """Batches that exist at once: those being loaded and those lent."""
    return PREFETCH * workers + SPARE


def throughput(loader: str, case: str, seconds: float, workers: int, start_method: str) -> dict[str, float]:
    """Load batches for a while, touch every page of each, and say what it took.

    Returns:
        batches, seconds, batches_per_second, bytes_per_second;
        trainer_cpu, workers_cpu: seconds of processor time a batch, user and system (the workers' in ticks of 10 ms);
        trainer_faults, tree_faults: minor page faults a batch, of this process, and of it and its workers.
    """
    what = CASES[case]
    batches = iter(
        loader_class(loader)(
            Repeated(what.sample(), ENDLESS),
            batch_size=what.batch_size,
            num_workers=workers,
            prefetch_factor=PREFETCH,
            multiprocessing_context=start_method,
        )
    )
    pages = _touch_dict if what.tensors > 1 else _touch
    _check(what, next(batches))

    least, end = WARM_UP_ROUNDS * ring_slots(workers), time.perf_counter() + WARM_UP * seconds
    while least > 0 or time.perf_counter() < end:
        batch = next(batches)  # the batch before it is given back only now, as in a training loop
        pages(batch)
        least -= 1

    count = 0
    workers_cpu, workers_faults = _workers()
    faults, cpu, start = _faults(), time.process_time(), time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        batch = next(batches)
        pages(batch)
        count += 1
    cpu, faults = time.process_time() - cpu, _faults() - faults
    took = now - start
    cpu_after, faults_after = _workers()
    _check(what, batch)
    return {
        "batches": count,
        "seconds": took,
        "batches_per_second": count / took,
        "bytes_per_second": count / took * what.batch_bytes,
        "trainer_cpu": cpu / count,
        "workers_cpu": (cpu_after - workers_cpu) / count,
        "trainer_faults": faults / count,
        "tree_faults": (faults + faults_after - workers_faults) / count,
    }


def waits(loader: str, case: str, workers: int, start_method: str, batches: int, restarts: int) -> dict[str, Any]:
    """Wait for first batches: of a new loader, then of further epochs, without and with persistent workers.

    Returns:
        first: seconds from iter() to the first batch of the first epoch in this process;
        next, persistent: the same of each further epoch, a list;
        next_gap, persistent_gap: seconds from the last batch of one epoch to the first of the next, with all that
        lies between: the end of the old workers and the iter().
    """
    what = CASES[case]
    data = Repeated(what.sample(), batches * what.batch_size)
    result: dict[str, Any] = {}
    for persistent in (False, True):
        epochs = loader_class(loader)(
            data,
            batch_size=what.batch_size,
            num_workers=workers,
            prefetch_factor=PREFETCH,
            multiprocessing_context=start_method,
            persistent_workers=persistent,
        )
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
                _touch(batch)
                last = time.perf_counter()
        if persistent:
            result |= {"persistent": from_iter[1:], "persistent_gap": from_last[1:]}
        else:
            result |= {"first": from_iter[0], "next": from_iter[1:], "next_gap": from_last[1:]}
    return result


class Listed(Dataset[int]):
    """Holds a list of paths whose characters take so many megabytes; its items cost nothing."""

    def __init__(self, megabytes: int) -> None:
        path = "/data/train/images/n%08d/n%08d_%07d.jpeg"
        count = megabytes * 1_000_000 // len(path % (0, 0, 0))
        self.paths = [path % (k % 1000, k % 1000, k) for k in range(count)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return index


def listed(loader: str, workers: int, start_method: str, megabytes: int) -> dict[str, float]:
    """Wait for the first batch of a dataset that is a long list.

    Returns:
        listed: seconds from iter() to that batch.
    """
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": start_method}
    batches = loader_class(loader)(Listed(megabytes), batch_size=8, **options)
    start = time.perf_counter()
    iterator = iter(batches)
    first = next(iterator)
    took = time.perf_counter() - start
    if first.tolist() != list(range(8)):
        raise AssertionError(f"not the batch that was to be loaded: {first}")
    return {"listed": took}


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


def _touch(batch: Any) -> None:
    touch_pages(batch.data_ptr(), batch.nbytes)


def _touch_dict(batch: Any) -> None:
    for tensor in batch.values():
        touch_pages(tensor.data_ptr(), tensor.nbytes)


def _check(case: Case, batch: Any) -> None:
    tensors = list(batch.values()) if case.tensors > 1 else [batch]
    for tensor in tensors:
        if tuple(tensor.shape) != (case.batch_size, *case.shape) or not bool((tensor == 1).all()):
            raise AssertionError(f"{case.name}: not the batch that was to be loaded: {tensor.shape} {tensor.dtype}")


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _workers() -> tuple[float, int]:
    """Processor time in seconds and minor page faults of the workers so far."""
    cpu, faults = 0, 0
    for worker in multiprocessing.active_children():
        with open(f"/proc/{worker.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()  # from field 3 of proc(5) on
        faults += int(fields[7])
        cpu += int(fields[11]) + int(fields[12])
    return cpu / os.sysconf("SC_CLK_TCK"), faults
