"""Pictures in files that are not in the page cache, and in files that are: with look_ahead and without.

These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.storage.timing import cpu_seconds
from shmloader import DataLoader, images

__all__ = ["COLD", "WARM", "cold"]

COLD, WARM = "cold", "warm"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SEED = 5
FEWEST = 4  # batches of a pass; the first one is not timed


def cold(folder: str, state: str, workers: int, batch_size: int, at: int) -> dict[str, float]:
    """Images a second of one pass in random order, with look_ahead and without.

    Args:
        folder: With a folder "files" of pictures.
        state: COLD: the files are taken out of the page cache first; WARM: they stay in it.
        workers, batch_size: Of the loader; batches are smaller if there are few pictures.
        at: The round: in every other one, the loader without look_ahead comes first.

    Returns:
        images, off: images a second, and with look_ahead=0; gain: times as many; cpu, cpu_off: microseconds an image.
    """
    dataset = images.ImageFolder(f"{folder}/files", images.training(224, mean=MEAN, std=STD))
    paths = [path for path, _ in dataset.samples]
    batch_size = max(1, min(batch_size, len(paths) // FEWEST))
    for path in paths:
        Path(path).read_bytes()
    took = {}
    for look_ahead in (None, 0) if at % 2 else (0, None):
        if state == COLD:
            _drop(paths)
        took[look_ahead] = _pass(dataset, look_ahead, workers, batch_size)
    (made, cpu), (off, cpu_off) = took[None], took[0]
    return {"images": made, "off": off, "gain": made / off, "cpu": cpu, "cpu_off": cpu_off}


def _drop(paths: list[str]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def _pass(dataset: Any, look_ahead: int | None, workers: int, batch_size: int) -> tuple[float, float]:
    order = np.random.default_rng(SEED).permutation(len(dataset)).tolist()
    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork", "drop_last": True}
    options["persistent_workers"] = True  # so that they can be asked for their time at the end
    with DataLoader(dataset, batch_size, sampler=order, look_ahead=look_ahead, **options) as loader:
        batches = iter(loader)
        next(batches)  # the workers have started
        begin, cpu = time.perf_counter(), cpu_seconds()
        count = batch_size * sum(1 for _ in batches)
        return count / (time.perf_counter() - begin), 1e6 * (cpu_seconds() - cpu) / max(1, count)
