"""Times samples with and without a cache of decoded pictures, by turns, and adds up the memory of several ranks.
This runs in a process of its own, see core/child.py.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import shmloader
from bench.core import jpegs, session
from shmloader import images
from shmloader.images import cache as cache_module

__all__ = ["NUMBERS", "WAYS", "samples", "shared"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NUMBERS: dict[str, dict[str, Any]] = {"uint8": {}, "float32": {"mean": MEAN, "std": STD}}
WAYS = ("none", "all fits", "half fits")
SEED = 5
SLICE = 8  # files that one way reads before it is the other's turn
ROOM = 2  # of a budget in which all pictures fit: as many times what they take


@contextmanager
def _tree(folder: str) -> Iterator[str]:
    """A folder of classes, as ImageFolder has them, around a folder of files."""
    with tempfile.TemporaryDirectory() as root:
        os.symlink(folder, f"{root}/all")
        yield root


def _dataset(root: str, number: str, exact: bool, cache: Any, name: str) -> Any:
    """A dataset whose memory is found by those of this bench alone, and by none of the user's jobs."""
    cache_module.NAME = f"shmloader_bench_{os.getsid(0)}_{name}"
    return images.ImageFolder(root, images.training(224, **NUMBERS[number]), exact=exact, cache=cache)


def samples(folder: str, number: str, exact: bool, seconds: float) -> dict[str, float]:
    """Microseconds of processor time a sample in the second epoch, of each way, in one thread on one core, by turns.

    Returns:
        Of each of WAYS the time; "first", of the first epoch, in which all is kept; "bytes", of a picture's samples;
        "equal", 1 where the samples of all ways are the same.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with _tree(folder) as root:
        whole = _dataset(root, number, exact, _room(folder), "whole")
        first = _epoch(whole)
        used = whole._following.cache._opened().table.used
        half = _dataset(root, number, exact, used // 2, "half")
        made = dict(zip(WAYS, (_dataset(root, number, exact, None, ""), whole, half), strict=True))
        _epoch(half)
        is_equal = all(_is_same(made["none"], dataset) for dataset in (whole, half))
        took, count = dict.fromkeys(WAYS, 0.0), 0
        while count == 0 or min(took.values()) < seconds:
            for begin in range(0, len(whole) - SLICE + 1, SLICE):
                for way, dataset in made.items():
                    torch.manual_seed(SEED + count)
                    before = time.process_time()
                    for index in range(begin, begin + SLICE):
                        dataset[index]
                    took[way] += time.process_time() - before
                count += SLICE
        pictures = len(whole)
    found = {way: 1e6 * spent / count for way, spent in took.items()}
    return {**found, "first": first, "bytes": used / pictures, "equal": float(is_equal)}


def _room(folder: str) -> int:
    files = jpegs.files(Path(folder))
    return max(64 << 20, ROOM * 8 * sum(os.path.getsize(path) for path in files))


def _epoch(dataset: Any) -> float:
    torch.manual_seed(SEED)
    before = time.process_time()
    for index in range(len(dataset)):
        dataset[index]
    return 1e6 * (time.process_time() - before) / len(dataset)


def _is_same(one: Any, other: Any) -> bool:
    for index in range(len(one)):
        torch.manual_seed(index)
        expected = one[index][0]
        torch.manual_seed(index)
        if not torch.equal(other[index][0], expected):
            return False
    return True


def shared(folder: str, ranks: int, workers: int) -> dict[str, float]:
    """Two epochs of several ranks with workers, with and without the cache, and the memory of all of them at the end.

    Returns:
        memory: bytes of all processes with a cache beyond those without (proportional set size: a page that several
        map counts once); kept: bytes of the cache; kept_twice: pictures that more than one process kept.
    """
    with _tree(folder) as root:
        plain, _, _ = _ranks(root, None, ranks, workers)
        cached, kept, pictures = _ranks(root, _room(folder), ranks, workers)
    files = len(jpegs.files(Path(folder)))
    return {"memory": cached - plain, "kept": kept, "kept_twice": max(0.0, pictures - files)}


def _ranks(root: str, cache: Any, ranks: int, workers: int) -> tuple[float, float, float]:
    context = multiprocessing.get_context("fork")
    found, all_read = context.SimpleQueue(), context.Barrier(ranks)
    others = [
        context.Process(target=_rank, args=(rank, root, cache, workers, all_read, found)) for rank in range(ranks)
    ]
    for process in others:
        process.start()
    figures = [found.get() for _ in range(ranks)]
    for process in others:
        process.join()
    memory, kept, _ = next(each for each in figures if each[0])
    return memory, kept, sum(each[2] for each in figures)


def _rank(rank: int, root: str, cache: Any, workers: int, all_read: Any, found: Any) -> None:
    dataset = _dataset(root, "uint8", True, cache, "shared")
    loader = shmloader.DataLoader(
        dataset, 8, shuffle=True, num_workers=workers, multiprocessing_context="fork", persistent_workers=True
    )
    for _ in range(2):
        for _ in loader:
            pass
    batches = iter(loader)
    for _ in range(len(loader) - 1):
        next(batches)
    all_read.wait()  # all workers of all ranks have read their pictures, and live
    used = dataset._following.cache
    table = None if used is None else used._opened().table
    memory = float(session.memory(os.getsid(0))) if rank == 0 else 0.0
    found.put((memory, 0.0 if table is None else table.used, 0.0 if table is None else table.figures(used._line).kept))
    all_read.wait()
