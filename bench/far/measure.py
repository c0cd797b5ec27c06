"""Batches of far workers beside those of local ones.  It runs in a process of its own, see core/child.py."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy
import torch

import shmloader
from bench.core.cases import CASES, ENDLESS
from bench.core.loaders import PREFETCH, SPARE
from bench.core.throughput import toucher
from bench.far.engine import Nearby
from bench.far.ways import WAYS

WARM_UP = 12  # batches: every slot has been read once, so its pages are mapped
TICKS = os.sysconf("SC_CLK_TCK")


def far(way: str, case: str, seconds: float, workers: int, step: float) -> dict[str, Any]:
    """Read batches for a while.

    Args:
        way: "local": workers of this machine; otherwise as many far ones, see WAYS.
        case: What is loaded.
        seconds: For how long, after the warm-up.
        workers: How many.
        step: Seconds that the loop sleeps after each batch.  So all ways come at one rate.  The loop's thread then has
            a core of its own: otherwise the far workers, which would be on other machines, push its data out of the
            caches.

    Returns:
        batches_per_second;
        trainer, workers, far: seconds of processor time a batch: of this process with its threads, of the local workers
        or the stand-ins, and of the far workers;
        own: seconds of processor time a batch that the thread takes which asks for batches;
        bytes: of a batch;
        memcpy: seconds that one core takes to copy as many bytes.
    """
    what = CASES[case]
    kind: dict[str, Any] = {"num_workers": workers, "prefetch_factor": PREFETCH}
    nearby = None
    if way != "local":
        _, in_flight = WAYS[way]
        # Nobody can be asked for more batches than the ring has open.
        nearby = Nearby(workers, *WAYS[way])
        kind = {"far_workers": nearby, "prefetch_factor": max(PREFETCH, in_flight)}
    loader = shmloader.DataLoader(
        what.dataset(ENDLESS, ""),
        what.batch_size,
        collate_fn=what.collate,
        spare_slots=SPARE,
        multiprocessing_context="spawn",
        **kind,
    )
    with loader:
        batches: Any = iter(loader)
        first = next(batches)
        touches: Any = toucher(first)
        for _ in range(WARM_UP):
            touches(next(batches))
        pids = [worker.pid for worker in batches._workers]
        far_pids = nearby.pids if nearby is not None else []
        if step:
            _have_own_core([*pids, *far_pids])
        count, cpu, theirs, of_far = 0, time.process_time(), sum(map(_cpu, pids)), sum(map(_cpu, far_pids))
        own, began = time.thread_time(), time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            touches(next(batches))
            count += 1
            if step:
                time.sleep(step)
        own, cpu, theirs = time.thread_time() - own, time.process_time() - cpu, sum(map(_cpu, pids)) - theirs
        of_far = sum(map(_cpu, far_pids)) - of_far
    size = sum(each.nbytes for each in _tensors(first))
    return {
        "batches_per_second": count / took,
        "trainer": cpu / count,
        "own": own / count,
        "workers": theirs / count,
        "far": of_far / count,
        "bytes": size,
        "memcpy": _memcpy(size),
    }


def _have_own_core(others: list[int]) -> None:
    """Move this thread to a core that these processes leave."""
    mine, *rest = sorted(os.sched_getaffinity(0))
    if not rest:
        return
    for pid in others:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), rest)
    os.sched_setaffinity(0, {mine})


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        batch = list(batch.values())
    return [tensor for part in batch for tensor in _tensors(part)] if isinstance(batch, (list, tuple)) else []


def _memcpy(size: int) -> float:
    source, to = numpy.ones(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
    times = []
    for _ in range(9):
        began = time.perf_counter()
        numpy.copyto(to, source)
        times.append(time.perf_counter() - began)
    return sorted(times)[4]
