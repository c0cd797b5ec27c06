"""What is timed: one process that decodes files in memory.

It runs in a process of its own, see core/child.py.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import torch

from bench.core import jpegs
from bench.images.methods import METHODS, PIL, SIZE, Box
from shmloader.core import jpeg
from shmloader.images.crops import RandomHorizontalFlip, RandomResizedCrop
from shmloader.images.random_numbers import Draws
from shmloader.images.view import View

SEED = 5  # of boxes and flips
SLICE = 16  # files that one way decodes before it is the other's turn, where it does not read ahead
COMPARED = 128  # files, at most, whose pixels are compared with PIL's


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

    def read(self) -> list[bytes]:
        """What is in them."""
        return [Path(path).read_bytes() for path in self.paths]


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
