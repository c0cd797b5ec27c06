"""How fast a loader delivers batches, and at what cost: its warm-up, CPU time, page faults, and time in next().
It compares the first and the last batch with the dataset's, bit for bit.  This runs in its own process, see child.py.

cases.py has the workloads, and loaders.py the loaders.  A folder's question.py compares them.  That of transport/
compares ours with torch's and others, and a new workload's name goes into its TRANSPORTED.

It imports neither rich nor matplotlib, because a spawned worker would have to import them as well.
"""

from __future__ import annotations

import importlib
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.core import session
from bench.core._probe import touch_pages
from bench.core.cases import CASES, ENDLESS, Case, leaves
from bench.core.loaders import LOADERS, PREFETCH, SPARE, Job, Loader

WARM_UP = 0.2  # of a measurement's length, at least
IN_ALL = 1.5  # the time of a measurement with the warm-up and a look at shared memory, relative to its length
WARM_UP_ROUNDS = 4  # through the ring, at least: each worker maps each slot's pages when it first fills it
LEAST = 8  # batches in a measurement
HEADROOM = 1 << 20  # bytes by which a batch may exceed twice the mean one


def ring_slots(workers: int) -> int:
    """Batches that exist at once: those being loaded and those lent."""
    return PREFETCH * workers + SPARE


def throughput(loader: str, case: str, seconds: float, workers: int, start_method: str) -> dict[str, float]:
    """throughput_of() torch's loader or ours, by its name."""
    return throughput_of(LOADERS[loader], case, seconds, workers, start_method)


def throughput_of(
    loader: Loader, case: str, seconds: float, workers: int, start_method: str, data: str = ""
) -> dict[str, float]:
    """Load batches for some seconds, touch every page of each, and return the cost.

    Returns:
        batches, seconds, batches_per_second, bytes_per_second;
        trainer_cpu, workers_cpu, tree_cpu: seconds of processor time a batch, user and system: of this process, of
        all its descendants, and of both;
        tree_seconds: as tree_cpu, but for the whole measurement;
        trainer_faults, tree_faults: minor page faults a batch, of this process, and of it and its descendants;
        next_p50, next_p99, next_max: seconds that next() took;
        shared_peak: by how many bytes the machine's shared memory grew at most after the loader was made, observed
        during some further batches;
        start_up: seconds from making the loader, with its modules imported, to its first batch.
    """
    what = CASES[case]
    dataset = what.dataset(ENDLESS, data)
    import_modules(loader)
    shared_before, began = session.shared_memory(), time.perf_counter()
    batches = iter(loader.open(job(what, dataset, workers, start_method)))
    batch = next(batches)
    start_up = time.perf_counter() - began
    check(what, dataset, 0, batch)
    pages = toucher(batch)
    count = 1

    least, begin = WARM_UP_ROUNDS * ring_slots(workers), time.perf_counter()
    while (now := time.perf_counter() - begin) < WARM_UP * seconds or (count < least and now < 3 * seconds):
        batch = next(batches)  # only now the batch before is given back, as in a training loop
        pages(batch)
        count += 1

    waits: list[int] = []
    waited, clock = waits.append, time.perf_counter_ns
    first, size = count, 0
    tree_cpu, tree_faults = session.used(os.getsid(0))
    faults, cpu, start = _faults(), time.process_time(), clock()
    end = start + int(seconds * 1e9)
    while (asked := clock()) < end or count < first + LEAST:
        batch = next(batches)
        waited(clock() - asked)
        size += pages(batch)
        count += 1
    cpu, faults = time.process_time() - cpu, _faults() - faults
    tree_cpu_after, tree_faults_after = session.used(os.getsid(0))
    check(what, dataset, count - 1, batch)
    took, tree_cpu, measured = (asked - start) / 1e9, tree_cpu_after - tree_cpu, len(waits)
    waits.sort()
    del batch  # SPDL's arena gives segments back in order only, so a batch that is held would stop it
    return {
        "batches": measured,
        "seconds": took,
        "batches_per_second": measured / took,
        "bytes_per_second": size / took,
        "trainer_cpu": cpu / measured,
        "workers_cpu": max(tree_cpu - cpu, 0) / measured,
        "tree_cpu": tree_cpu / measured,
        "tree_seconds": tree_cpu,
        "trainer_faults": faults / measured,
        "tree_faults": (tree_faults_after - tree_faults) / measured,
        "next_p50": waits[measured // 2] / 1e9,
        "next_p99": waits[measured * 99 // 100] / 1e9,
        "next_max": waits[-1] / 1e9,
        "shared_peak": _shared_peak(batches, pages, seconds) - shared_before,
        "start_up": start_up,
    }


def job(what: Case, dataset: Dataset[Any], workers: int, start_method: str, persistent: bool = False) -> Job:
    """The loader's job in a case."""
    largest = 2 * what.batch_bytes + HEADROOM if what.collate else what.batch_bytes + HEADROOM
    return Job(dataset, what.batch_size, what.collate, workers, start_method, largest, persistent)


def toucher(batch: Any) -> Callable[[Any], int]:
    """The quickest function that touches every page of batches like this one; it returns their bytes."""
    if isinstance(batch, torch.Tensor):
        return _touch
    if isinstance(batch, dict) and all(isinstance(part, torch.Tensor) for part in batch.values()):
        return _touch_dict
    return _touch_all


def _touch(batch: Any) -> int:
    size: int = batch.nbytes
    touch_pages(batch.data_ptr(), size)
    return size


def _touch_dict(batch: Any) -> int:
    return sum(map(_touch, batch.values()))


def _touch_all(batch: Any) -> int:
    return sum(map(_touch, leaves(batch)))


def _shared_peak(batches: Any, pages: Callable[[Any], int], seconds: float) -> int:
    """The most shared memory in use between any two of some further batches."""
    peak, end = session.shared_memory(), time.perf_counter() + WARM_UP * seconds
    while time.perf_counter() < end:
        pages(next(batches))
        peak = max(peak, session.shared_memory())
    return peak


def check(case: Case, dataset: Dataset[Any], number: int, batch: Any) -> None:
    """Check that this is the batch of this number, to the bit: no batch was lost, changed or overtaken."""
    wanted, got = leaves(case.batch(dataset, number)), leaves(batch)
    if len(wanted) != len(got) or not all(map(_same, wanted, got)):
        raise AssertionError(f"{case.name}: batch {number} is not the one that was to be loaded")


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def import_modules(loader: Loader) -> None:
    for name in loader.needs:
        importlib.import_module(name)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
