"""How fast batches can be written into shared memory at all, on this machine, now.

As many processes as a loader has workers copy one row after the other into slots of shared memory that have their
pages already, all at once; there is nobody to wait for and nothing to hand over.
"""

from __future__ import annotations

import mmap
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from bench.cases import CASES
from bench.measure import WARM_UP, ring_slots
from shmloader import _probe

CEILINGS = {"memcpy": "copy_rows", "streaming": "stream_rows"}
MEANING = {
    "memcpy": "plain stores, which make the processor fetch each line of the slot before it overwrites it",
    "streaming": "stores past the cache, which skip that fetch; shmloader uses them for large batches, so it may "
    "exceed the memcpy ceiling",
}
PAGE = mmap.PAGESIZE
PATIENCE = 30  # seconds to wait for the other processes; child.py ends it all later


def ceiling(kind: str, case: str, seconds: float, workers: int) -> dict[str, float]:
    """Fill slots by one of CEILINGS.  Runs in a process of its own, see child.py.

    Returns:
        bytes_per_second: of all processes together.
    """
    what = CASES[case]
    slots = ring_slots(workers)
    stride = -(-what.batch_bytes // PAGE) * PAGE
    memory = mmap.mmap(-1, slots * stride)  # anonymous and shared: the same pages as /dev/shm has
    first = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers)
    processes, results = [], []
    for worker in range(workers):
        result, send = context.Pipe(duplex=False)
        mine = [first + slot * stride for slot in range(worker, slots, workers)]
        process = context.Process(target=_fill, args=(kind, case, mine, seconds, barrier, send), daemon=True)
        process.start()
        send.close()  # so that recv() ends when the process does
        processes.append(process)
        results.append(result)
    total = sum(result.recv() for result in results)
    for process in processes:
        process.join()
    return {"bytes_per_second": total}


def _fill(kind: str, case: str, slots: list[int], seconds: float, barrier: Barrier, send: Connection) -> None:
    copy: Any = getattr(_probe, CEILINGS[kind])
    what = CASES[case]
    row = torch.ones(what.sample_bytes, dtype=torch.uint8)
    address, size, rows = row.data_ptr(), what.sample_bytes, what.batch_size
    barrier.wait(PATIENCE)
    end = time.perf_counter() + WARM_UP * seconds
    warm = 0
    while warm < 2 or time.perf_counter() < end:  # the first time round, the pages are made
        for slot in slots:
            copy(slot, address, size, rows)
        warm += 1
    barrier.wait(PATIENCE)
    batches = 0
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        copy(slots[batches % len(slots)], address, size, rows)
        batches += 1
    send.send(batches * what.batch_bytes / (now - start))
