"""Batches of a loader whose samples lie on a slow server: torch's, ours, and ours in the ways of looking ahead.

These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shmloader
from bench.storage.archives import pack_sized
from bench.storage.bare_client import bare_rate
from bench.storage.server import serving
from bench.storage.timing import cpu_seconds, others

__all__ = ["LOOKING_AHEAD", "PLAIN", "TORCH", "far_load"]

TORCH, PLAIN, LOOKING_AHEAD = "torch", "plain", "look_ahead"
SIZE = 1 << 16  # bytes of a picture
PICTURES = 512
WARM_UP = 4  # batches a worker


class Pictures(shmloader.Shards):
    """Pictures as they lie in their archives: the server and the requests are measured, and no decoder."""

    def __getitem__(self, index: Any) -> Any:
        return torch.frombuffer(bytearray(super().__getitem__(index)["jpg"]), dtype=torch.uint8)


class _Endless(torch.utils.data.Sampler[int]):
    """The samples at random, again and again."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng(5)
        while True:
            yield from generator.permutation(self._count).tolist()


def far_load(
    way: str, depth: int, batch_size: int, workers: int, seconds: float, latency: float, megabytes: float
) -> dict[str, float]:
    """Samples a second by a loader.

    Args:
        way: TORCH, PLAIN (ours, with look_ahead=0) or LOOKING_AHEAD.
        depth: Samples under way in all workers together, a multiple of workers * batch_size.
        batch_size, workers: Of the loader.
        seconds: How long it is measured.
        latency: Seconds that each request waits.
        megabytes: That the server sends a second, in all.

    Returns:
        samples: a second; limit: that a bare client gets from this server with so many requests under way; of_limit:
        the ratio of the two; of_delay: the ratio to a server that takes no time but the latency; cpu: microseconds of
        trainer and workers a sample.
    """
    with tempfile.TemporaryDirectory() as folder, serving(folder, latency, 1e6 * megabytes) as url:
        server = others()
        pack_sized(Path(folder) / "0.tar", PICTURES, SIZE)
        dataset = Pictures(f"{url}0.tar", index=f"{folder}/far.index", progress=False)
        options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork"}
        sampler = _Endless(len(dataset))
        per_worker = max(1, depth // (workers * batch_size))  # batches that each worker has announced
        if way == TORCH:
            loader: Any = torch.utils.data.DataLoader(dataset, batch_size, sampler=sampler, **options)
        else:
            options |= {"prefetch_factor": 2 * per_worker, "look_ahead": 0 if way == PLAIN else per_worker}
            loader = shmloader.DataLoader(dataset, batch_size, sampler=sampler, **options)
        batches = iter(loader)
        at_first = 1 if way != LOOKING_AHEAD else WARM_UP * per_worker
        for _ in range(at_first * workers):
            next(batches)
        begin, cpu, count = time.perf_counter(), cpu_seconds(server), 0
        while (spent := time.perf_counter() - begin) < seconds or count < 2 * workers:
            next(batches)
            count += batch_size
        cpu = cpu_seconds(server) - cpu
        del batches, loader  # the workers end
        under_way = depth if way == LOOKING_AHEAD else workers
        limit = bare_rate(f"{url}0.tar", SIZE, under_way, min(2.0, seconds))
        return {
            "samples": count / spent,
            "limit": limit,
            "of_limit": count / spent / limit,
            "of_delay": count / spent / min(under_way / latency, 1e6 * megabytes / SIZE),
            "cpu": 1e6 * cpu / count,
        }
