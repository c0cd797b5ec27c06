"""How fast batches can be written into shared memory at all, on this machine, now.

As many processes as a loader has workers copy the tensors of a batch's samples, one after the other, into slots of
shared memory that have their pages already, all at once.  Nobody waits, and nothing is handed over.
"""

from __future__ import annotations

import mmap
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bench.core import _probe
from bench.core.cases import CASES, ENDLESS, leaves
from bench.core.throughput import WARM_UP, ring_slots

Addresses = npt.NDArray[np.uint64]
CEILINGS = {"memcpy": "copy_batches", "streaming": "stream_batches"}
MEANING = {
    "memcpy": "plain stores, which make the processor fetch each line of the slot before it overwrites it",
    "streaming": "stores past the cache, which skip that fetch; shmloader uses them for large batches, so it may "
    "exceed the memcpy ceiling",
}
PAGE = mmap.PAGESIZE
AT_ONCE = 1 << 16  # bytes, at least, between two readings of the clock: several small batches
PATIENCE = 30  # seconds to wait for the other processes; after that child.py ends them


def ceiling(kind: str, case: str, seconds: float, workers: int) -> dict[str, float]:
    """Fill slots by one of CEILINGS.  Runs in its own process, see child.py.

    Returns:
        batches_per_second, bytes_per_second: of all processes together.
    """
    what = CASES[case]
    dataset = what.dataset(ENDLESS, "")
    samples = [leaf for k in range(what.batch_size) for leaf in leaves(dataset[k])]
    pieces = np.array([(leaf.data_ptr(), leaf.nbytes) for leaf in samples], dtype=np.uint64)
    batch_bytes = int(pieces[:, 1].sum())
    slots, stride = ring_slots(workers), -(-batch_bytes // PAGE) * PAGE
    memory = mmap.mmap(-1, slots * stride)  # anonymous and shared: the same pages as /dev/shm has
    first = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(workers)
    processes, results = [], []
    for worker in range(workers):
        result, send = context.Pipe(duplex=False)
        mine = np.arange(worker, slots, workers, dtype=np.uint64) * np.uint64(stride) + np.uint64(first)
        process = context.Process(target=_fill, args=(kind, mine, pieces, seconds, barrier, send), daemon=True)
        process.start()
        send.close()  # so that recv() ends when the process does
        processes.append(process)
        results.append(result)
    total = sum(result.recv() for result in results)
    for process in processes:
        process.join()
    return {"batches_per_second": total, "bytes_per_second": total * batch_bytes}


def _fill(kind: str, slots: Addresses, pieces: Addresses, seconds: float, barrier: Barrier, send: Connection) -> None:
    copy: Any = getattr(_probe, CEILINGS[kind])
    slots = np.tile(slots, -(-AT_ONCE // (len(slots) * int(pieces[:, 1].sum()))))
    barrier.wait(PATIENCE)
    end = time.perf_counter() + WARM_UP * seconds
    warm = 0
    while warm < 2 or time.perf_counter() < end:  # the first round makes the pages
        copy(slots, pieces)
        warm += 1
    barrier.wait(PATIENCE)
    batches = 0
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds:
        copy(slots, pieces)
        batches += len(slots)
    send.send(batches / (now - start))
