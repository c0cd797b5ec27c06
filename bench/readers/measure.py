"""One loader that several jobs read, beside a loader for each.  It runs in a process of its own, see core/child.py."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import torch

import shmloader
from bench.core.cases import CASES, ENDLESS
from bench.core.loaders import PREFETCH, SPARE
from bench.core.throughput import toucher
from bench.readers.beside_tensorsocket import TENSORSOCKET, consume, free_ports, produce
from shmloader.readers.server import serve

WARM_UP = 12  # batches: every slot has been read once, so its pages are mapped
FORK: Any = multiprocessing.get_context("fork")


def loader_of(case: str, workers: int, data: str) -> Any:
    """The loader that is read."""
    what = CASES[case]
    return shmloader.DataLoader(
        what.dataset(ENDLESS, data),
        what.batch_size,
        num_workers=workers,
        collate_fn=what.collate,
        prefetch_factor=PREFETCH,
        spare_slots=SPARE,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


class AlsoATuple:
    """A collate function's batch as a tuple of one, which TensorSocket needs."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> tuple[Any]:
        return (self._collate(samples),)


def torchs_loader_of(case: str, workers: int, data: str) -> Any:
    """torch's loader of the same batches."""
    what = CASES[case]
    return torch.utils.data.DataLoader(
        what.dataset(ENDLESS, data),
        what.batch_size,
        num_workers=workers,
        collate_fn=AlsoATuple(what.collate or torch.utils.data.default_collate),
        prefetch_factor=PREFETCH,
        multiprocessing_context="fork",
    )


def readers(way: str, case: str, readers: int, seconds: float, workers: int, touch: bool, data: str) -> dict[str, Any]:
    """Read the same batches in several processes for a while.

    Args:
        way: "served": one loader is served, and each process attaches; TENSORSOCKET: it sends the batches of one
            loader of torch's to each process; "each its own": each has a loader.
        case: What is loaded.
        readers: How many processes.
        seconds: For how long, after the warm-up.
        workers: Of each loader.
        touch: Whether a byte of every page of each batch is read.
        data: Folder of JPEG files.

    Returns:
        batches_per_second: of each process, the slowest first;
        cpu: seconds of processor time that each spent a batch, with all its threads and without workers.
    """
    name, ports, server = f"bench-{os.getpid()}", free_ports(), None
    if way == "served":
        server = FORK.Process(target=_serve, args=(case, workers, data, name))
    elif way == TENSORSOCKET:
        server = FORK.Process(target=_produce, args=(case, workers, data, ports, readers))
    if server is not None:
        server.start()
    barrier, found = FORK.Barrier(readers), FORK.Queue()
    jobs = [
        FORK.Process(target=_read, args=(way, case, seconds, workers, touch, data, name, ports, barrier, found))
        for _ in range(readers)
    ]
    for job in jobs:
        job.start()
    got = [found.get(timeout=120 + seconds) for _ in jobs]
    for job in jobs:
        job.join()
    if server is not None:
        os.kill(server.pid, signal.SIGTERM)
        server.join()
    return {"batches_per_second": sorted(rate for rate, _ in got), "cpu": sorted(cpu for _, cpu in got)}


def _serve(case: str, workers: int, data: str, name: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(loader_of(case, workers, data), name)


def _produce(case: str, workers: int, data: str, ports: list[int], readers: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: _end_workers())
    produce(torchs_loader_of(case, workers, data), ports, readers)


def _end_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.terminate()
    os._exit(0)


def _read(
    way: str,
    case: str,
    seconds: float,
    workers: int,
    touch: bool,
    data: str,
    name: str,
    ports: list[int],
    barrier: Any,
    found: Any,
) -> None:
    if way == TENSORSOCKET:
        batches = consume(ports, CASES[case].batch_size)
    else:
        batches = iter(_attached(name) if way == "served" else loader_of(case, workers, data))
    barrier.wait()  # before the first batch: a job that came later would wait for these, which would wait for it
    touches: Any = toucher(next(batches)) if touch else lambda batch: 0
    for _ in range(WARM_UP):
        touches(next(batches))
    count, cpu, began = 0, time.process_time(), time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        touches(next(batches))
        count += 1
    found.put((count / took, (time.process_time() - cpu) / count))


def _attached(name: str) -> Any:
    while True:
        try:
            return shmloader.attach(name)
        except ConnectionError:  # it is starting
            time.sleep(0.05)
