"""What is measured of the loaders that race, and what no loader can beat: handing over, waking up, the work itself.

These run in a process of their own, see core/child.py.  How fast memory can be filled at all is in core/ceiling.py.
"""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch.utils.data import Dataset

from bench.core import session
from bench.core._probe import BELLS_BYTES, verbs, wake_ups
from bench.core.cases import CASES, ENDLESS, leaves
from bench.core.ceiling import PATIENCE
from bench.core.loaders import Job
from bench.core.throughput import (
    HEADROOM,
    LEAST,
    WARM_UP,
    check,
    import_modules,
    job,
    ring_slots,
    throughput_of,
    toucher,
)
from bench.peers.loaders import LOADERS
from shmloader.core.ring import FILLED
from shmloader.core.trainer import TrainerSide
from shmloader.core.worker import WorkerSide
from shmloader.ring.segment import Segment

LIMIT, HANDOVER = "limit", "handover"  # subjects of the race that are no loaders
SPAWN, EPOCH = "spawn", "epoch"
TIMES = {  # cases of the race that are a time and not a rate
    SPAWN: "spawn: to the first batch of a dataset that holds 128 MB of paths, 4 workers",
    EPOCH: "epoch restart: from the last batch to the next epoch's first, uint8 128 x 3x32x32",
}
MEANING = {
    "verbs": "open + claim + publish + take with nobody waiting, by the ring's own atomics, ns",
    "calls": "the same by the ring's Python calls, an empty batch, ns",
    "wake_up": "one wake-up between two processes, both asleep: half a round trip over two futexes, us",
    "processes": "starting that many bare processes that import torch, all at once, until the first has, s",
}
ROUND_TRIPS = 4000
SEQUENCES = 200_000


def label(case: str) -> str:
    """What a case is called in tables and pictures."""
    return TIMES[case] if case in TIMES else CASES[case].label


def throughput(loader: str, case: str, seconds: float, workers: int, start_method: str, data: str) -> dict[str, float]:
    """throughput_of() one of the loaders that race, by its name."""
    return throughput_of(LOADERS[loader], case, seconds, workers, start_method, data)


class Paths(Dataset[Any]):
    """Files by their paths, all of them held in a list: what many datasets are, and what a spawned worker is sent."""

    LENGTH = 128  # characters of a path

    def __init__(self, megabytes: int) -> None:
        self._paths = [f"{k:0{self.LENGTH}}" for k in range(megabytes * (1 << 20) // self.LENGTH)]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(int(self._paths[index]))


def first_batch(loader: str, workers: int, start_method: str, megabytes: int) -> dict[str, float]:
    """Wait for the first batch of a dataset that holds a long list of paths.

    Returns:
        first: seconds from making the loader, whose modules are there already, to its first batch;
        tree_seconds: of processor time until then, of this process and all that descend from it;
        shared_peak: bytes of shared memory, as in throughput().
    """
    dataset = Paths(megabytes)
    import_modules(LOADERS[loader])
    shared, (cpu, _), began = session.shared_memory(), session.used(os.getsid(0)), time.perf_counter()
    opened = LOADERS[loader].open(Job(dataset, 16, None, workers, start_method, HEADROOM))
    batch = next(iter(opened))
    first = time.perf_counter() - began
    if leaves(batch)[0].tolist() != list(range(16)):
        raise AssertionError("not the batch that was to be loaded")
    return {
        "first": first,
        "tree_seconds": session.used(os.getsid(0))[0] - cpu,
        "shared_peak": float(session.shared_memory() - shared),
    }


def restart(loader: str, workers: int, start_method: str, batches: int, epochs: int) -> dict[str, float]:
    """Go from one epoch into the next, with workers that stay where the loader can have them stay.

    Returns:
        gap: seconds from the last batch of an epoch to the first of the next, the median;
        tree_seconds: of processor time of all epochs, of this process and all that descend from it;
        shared_peak: bytes of shared memory, as in throughput(), looked at when an epoch begins.
    """
    what = CASES["small-images"]
    dataset = what.dataset(batches * what.batch_size, "")
    import_modules(LOADERS[loader])
    shared = session.shared_memory()
    opened = LOADERS[loader].open(job(what, dataset, workers, start_method, persistent=True))
    pages = toucher(what.batch(dataset, 0))
    gaps, peak, last, cpu = [], 0, 0.0, session.used(os.getsid(0))[0]
    for _ in range(1 + epochs):
        count = 0
        for batch in opened:
            if not count:
                gaps.append(time.perf_counter() - last)
                peak = max(peak, session.shared_memory())
                check(what, dataset, 0, batch)
            pages(batch)
            count += 1
            last = time.perf_counter()
        if count != batches:
            raise AssertionError(f"an epoch had {count} batches, and not {batches}")
    return {
        "gap": statistics.median(gaps[1:]),
        "tree_seconds": session.used(os.getsid(0))[0] - cpu,
        "shared_peak": float(peak - shared),
    }


def handover(workers: int) -> dict[str, float]:
    """The least that handing a batch over costs.

    Returns, in seconds:
        verbs, calls, wake_up: see MEANING.
    """
    entries = ring_slots(workers)
    verbs(SEQUENCES, entries)  # once to warm up
    return {"verbs": verbs(SEQUENCES, entries) / 1e9, "calls": _calls(entries), "wake_up": _wake_up() / 1e9}


def _calls(entries: int) -> float:
    segment = Segment(1, entries, entries, 1, "auto", None, False)
    trainer = TrainerSide(segment, False, 1, True)
    segment.format(trainer)
    worker = WorkerSide(segment, False, 0, 0)
    took = 0.0
    for rounds in (SEQUENCES // 10, SEQUENCES):  # the first to warm up
        start = time.perf_counter()
        for k in range(rounds):
            trainer.open(0, k)
            worker.claim()
            worker.publish(FILLED)
            trainer.take()  # and gives the payload back
        took = (time.perf_counter() - start) / rounds
    trainer.close()
    segment.close()
    return took


def _wake_up() -> float:
    bells = torch.frombuffer(mmap.mmap(-1, BELLS_BYTES), dtype=torch.uint8)
    pid = os.fork()
    if not pid:
        wake_ups(bells.data_ptr(), ROUND_TRIPS, False)
        os._exit(0)
    took = wake_ups(bells.data_ptr(), ROUND_TRIPS, True)
    os.waitpid(pid, 0)
    return took


def work(case: str, seconds: float, workers: int, data: str) -> dict[str, float]:
    """Make batches by the dataset's and the collate function's own code, in as many processes, and drop them.

    Returns:
        batches_per_second: of all processes together.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers)
    results = []
    for worker in range(workers):
        result, send = context.Pipe(duplex=False)
        arguments = (case, worker, workers, seconds, data, barrier, send)
        context.Process(target=_make, args=arguments, daemon=True).start()
        send.close()  # so that recv() ends when the process does
        results.append(result)
    return {"batches_per_second": sum(result.recv() for result in results)}


def _make(case: str, worker: int, workers: int, seconds: float, data: str, barrier: Barrier, send: Connection) -> None:
    what = CASES[case]
    dataset = what.dataset(ENDLESS, data)
    number = worker
    for length in (WARM_UP * seconds, seconds):
        barrier.wait(PATIENCE)
        start, count = time.perf_counter(), 0
        while (now := time.perf_counter()) < start + length or count < LEAST // workers:
            what.batch(dataset, number)
            number += workers
            count += 1
    send.send(count / (now - start))


def processes(workers: int, start_method: str) -> dict[str, float]:
    """Start bare processes at once, each of which imports torch.

    Returns:
        first: seconds until the first of them has, and has ended.
    """
    context: Any = multiprocessing.get_context(start_method)
    start = time.perf_counter()
    started = []
    for _ in range(workers):
        process = context.Process(target=importlib.import_module, args=("torch",), daemon=True)
        process.start()
        started.append(process.sentinel)
    wait(started)
    return {"first": time.perf_counter() - start}
