"""What is timed: one process that decodes files in memory, and loaders that read them from disk.

These run in a process of their own, see core/child.py.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bench.core import jpegs, session
from bench.core._probe import touch_pages
from bench.core.loaders import LOADERS, Job
from bench.images.methods import METHODS, PIL, ROWS, SIZE, Box
from shmloader.core import jpeg
from shmloader.images.crops import RandomHorizontalFlip, RandomResizedCrop
from shmloader.images.decode import Picture
from shmloader.images.random_numbers import Draws
from shmloader.images.rows import Rows
from shmloader.images.view import View

SEED = 5  # of boxes and flips
SLICE = 16  # files that one way decodes before it is the other's turn, where it does not read ahead
COMPARED = 128  # files, at most, whose pixels are compared with PIL's
WARM_UP = 8  # batches a worker that a loader makes before it is timed
LEAST = 8  # batches that are timed


class Files:
    """The JPEG files of a folder that our decoder takes, with a box and a flip for each, as training draws them."""

    def __init__(self, folder: str) -> None:
        decoder, draws = jpeg.Decoder(), Draws()
        steps = (RandomResizedCrop((SIZE, SIZE)), RandomHorizontalFlip())
        torch.manual_seed(SEED)
        self.paths: list[str] = []
        self.boxes: list[Box] = []
        self.flips: list[bool] = []
        for path in jpegs.files(Path(folder)):
            opened = decoder.read(path)
            if opened is None:
                continue  # progressive, say
            view = View(opened[0], opened[1])
            for step in steps:
                step.apply(view, draws)
            self.paths.append(path)
            self.boxes.append(view.crop)
            self.flips.append(view.is_flipped)
        decoder.close()
        if not self.paths:
            raise FileNotFoundError("the folder has no baseline JPEG files")

    def read(self, most: int | None = None) -> list[bytes]:
        """What is in them."""
        return [_content(path) for path in self.paths[:most]]


def decode(method: str, folder: str, seconds: float) -> dict[str, float]:
    """Make rows of files in memory, in one thread on one core, by turns with PIL, for some seconds.

    The turns are short, so that other work of the machine meets both.

    Returns:
        images_per_cpu_second: whole passes over all files, by the processor time of this process;
        ratio: how many times as quick it is as PIL beside it;
        difference: from PIL's pixels, absolute, a mean, in units of 1/255;
        pooled, worst: the same as a peak signal-to-noise ratio in dB, of all pixels together and of the worst picture
        (infinite where all are the same: left out then, and where no pixels are made).
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    files = Files(folder)
    contents = files.read()
    rows, others = torch.zeros((2, len(contents), 3, SIZE, SIZE), dtype=torch.uint8)
    runs = {method: METHODS[method].all_of(), PIL: METHODS[PIL].all_of()}
    into, took = {PIL: others, method: rows}, dict.fromkeys(runs, 0.0)
    runs[method](contents, files.boxes, files.flips, list(rows))  # to warm up
    passes, at_once = 0, SLICE if METHODS[method].opens_pass is None else len(contents)
    while took[method] < seconds:
        for begin in range(0, len(contents), at_once):
            here = slice(begin, begin + at_once)
            for name, run in runs.items():
                arguments = contents[here], files.boxes[here], files.flips[here], list(into[name][here])
                before = time.process_time()
                run(*arguments)
                took[name] += time.process_time() - before
        passes += 1
    found = {"images_per_cpu_second": passes * len(contents) / took[method], "ratio": took[PIL] / took[method]}
    return found | (_quality(rows, files, contents) if METHODS[method].has_pixels else {})


def _quality(rows: torch.Tensor, files: Files, contents: list[bytes]) -> dict[str, float]:
    compared = min(COMPARED, len(rows))
    expected = torch.zeros_like(rows[:compared])
    by_pil = METHODS[PIL].all_of()
    by_pil(contents[:compared], files.boxes[:compared], files.flips[:compared], list(expected))
    absolute, squares = [], []
    for one, other in zip(rows[:compared], expected, strict=True):
        difference = one.to(torch.float64) - other
        absolute.append(difference.abs().mean().item())
        squares.append(difference.square().mean().item())
    found = {"difference": sum(absolute) / compared}
    for name, square in (("pooled", sum(squares) / compared), ("worst", max(squares))):
        if square:
            found[name] = 10 * math.log10(255**2 / square)
    return found


class Photographs(Dataset[torch.Tensor]):
    """A row of each file, read from disk; the files again and again.

    Args:
        files: of which folder.
        method: how they are decoded.
        length: samples in an epoch.
    """

    def __init__(self, files: Files, method: str, length: int) -> None:
        self._files = files
        self._method = method
        self._length = length
        self._one: Any = None  # opened in the worker
        self._rows = Rows(Path(tempfile.gettempdir()) / "rows", files.paths) if method == ROWS else None

    @property
    def paths(self) -> list[str]:
        return self._files.paths

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitem_into__(index, torch.empty((3, SIZE, SIZE), dtype=torch.uint8))

    def __getitem_into__(self, index: int, row: torch.Tensor) -> torch.Tensor:
        """Where a loader can say where the row lies in its batch, it is written there."""
        files, at = self._files, index % len(self._files.paths)
        if self._rows is not None:
            pixels = row.numpy()[:, :, ::-1] if files.flips[at] else row.numpy()
            with Picture(files.paths[at], rows=self._rows, at=at) as picture:
                picture.read_part(files.boxes[at], pixels, exact=False)
            return row
        method = METHODS[self._method]
        if self._one is None:
            assert method.open is not None
            self._one = method.open()
        self._one(files.paths[at] if method.reads else _content(files.paths[at]), files.boxes[at], files.flips[at], row)
        return row


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def load(loader: str, method: str, folder: str, seconds: float, workers: int, batch_size: int) -> dict[str, float]:
    """Load batches of files on disk, which the kernel has in memory after the warm-up, and touch each page of them.

    Returns:
        images_per_second;
        trainer_cpu: seconds of processor time a batch of this process;
        images_per_cpu_second: of this process and all that descend from it.
    """
    dataset = Photographs(Files(folder), method, 1 << 30)
    if method == ROWS:
        for index in range(len(dataset.paths)):
            dataset[index]  # the first epoch
    row_bytes = 3 * SIZE * SIZE
    job = Job(dataset, batch_size, None, workers, "fork", batch_size * row_bytes)
    batches: Iterable[Any] = LOADERS[loader].open(job)
    iterator = iter(batches)
    for _ in range(WARM_UP * workers):
        _touch(next(iterator))
    cpu, tree, begin = time.process_time(), session.used(os.getsid(0))[0], time.perf_counter()
    count = 0
    while (took := time.perf_counter() - begin) < seconds or count < LEAST:
        batch = next(iterator)
        _touch(batch)
        count += 1
    cpu, tree = time.process_time() - cpu, session.used(os.getsid(0))[0] - tree
    _check(batch, dataset, WARM_UP * workers + count - 1)
    return {
        "images_per_second": count * batch_size / took,
        "trainer_cpu": cpu / count,
        "images_per_cpu_second": count * batch_size / tree,
    }


def _touch(batch: torch.Tensor) -> None:
    touch_pages(batch.data_ptr(), batch.nbytes)


def _check(batch: torch.Tensor, dataset: Photographs, number: int) -> None:
    """That this is the batch of this number, to the bit."""
    first = number * len(batch)
    if not np.array_equal(batch.numpy(), torch.stack([dataset[first + k] for k in range(len(batch))]).numpy()):
        raise AssertionError(f"batch {number} is not the one that was to be loaded")
