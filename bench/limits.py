"""What no loader can be quicker than, on this machine, now: handing over, waking up, and the work itself.

How fast memory can be filled at all is in ceiling.py.  These run in a process of their own, see child.py.
"""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import os
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from bench.cases import CASES, ENDLESS
from bench.ceiling import PATIENCE
from bench.core._probe import BELLS_BYTES, verbs, wake_ups
from bench.race import LEAST, WARM_UP, ring_slots
from shmloader._ring import FILLED, TrainerSide, WorkerSide
from shmloader.segment import Segment

MEANING = {
    "verbs": "open + claim + publish + take with nobody waiting, by the ring's own atomics, ns",
    "calls": "the same by the ring's Python calls, an empty batch, ns",
    "wake_up": "one wake-up between two processes, both asleep: half a round trip over two futexes, us",
    "processes": "starting that many bare processes that import torch, all at once, until the first has, s",
}
ROUND_TRIPS = 4000
SEQUENCES = 200_000


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
    trainer = TrainerSide(segment.mapping, segment.geometry, segment.memfd, False, 1, True)
    segment.format(trainer)
    worker = WorkerSide(segment.mapping, segment.geometry, segment.memfd, False, 0, 0, 0)
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
    """Make batches by the dataset's and the collate function's own code, in as many processes, for nobody.

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
