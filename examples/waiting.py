"""Why a loop waits: one step, over datasets that are slow in different ways, and loader.report() on each.

A loader measures all the time, so nothing must be switched on.  --plot also draws a picture of the last batches.

    python -m examples.waiting
    python -m examples.waiting --plot build
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import shmloader as loader

STEP = 0.01  # seconds that the training step takes
BATCH = 8


def quick(index: int) -> None:
    """The samples are ready."""


def from_a_disk(index: int) -> None:
    """Each sample waits, as for a disk or a network."""
    time.sleep(0.005)


def now_and_then(index: int) -> None:
    """One sample of 37 takes long."""
    time.sleep(0.08 if index % 37 == 5 else 0.0005)


CASES: dict[str, Callable[[int], None]] = {"quick": quick, "disk": from_a_disk, "uneven": now_and_then}


class Slow(loader.Dataset[Tensor]):
    def __init__(self, work: Callable[[int], None], count: int) -> None:
        self.work, self.count = work, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        self.work(index)
        return torch.full((3, 32, 32), index)


def main(arguments: Sequence[str] | None = None) -> dict[str, str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40, help="of each epoch (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="a folder for pictures; needs matplotlib (default: none)")
    options = parser.parse_args(arguments)
    kinds: dict[str, str] = {}
    for name, work in CASES.items():
        dataset = Slow(work, BATCH * options.batches)
        batches: loader.DataLoader[Any] = loader.DataLoader(
            dataset, batch_size=BATCH, num_workers=2, persistent_workers=True
        )
        for _ in range(2):
            for _ in batches:
                time.sleep(STEP)
        report = batches.report("epoch")  # of the second one, because workers have started before it
        batches.close()
        print(f"--- {name}: {work.__doc__}\n{report}\n")
        if options.plot:
            report.plot(options.plot / f"{name}.png")
        kinds[name] = report.verdict.kind
    return kinds


if __name__ == "__main__":
    main()
