"""How long workers take to start.  This runs in a process of its own, see core/child.py.

It imports neither rich nor matplotlib: a spawned worker would have to import them as well.
"""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import Dataset

import shmloader

SAMPLES = 320  # of a short epoch
BATCH = 8


class Paths(Dataset[int]):
    """A list of paths, of about so many bytes."""

    def __init__(self, megabytes: int) -> None:
        one = len("/data/train/n00000000/n00000000_0000000000.JPEG" + "x" * 73)
        self.paths = [
            f"/data/train/n{k % 1000:08}/n{k % 1000:08}_{k:010}.JPEG" + "x" * 73
            for k in range(max(SAMPLES, megabytes * 1_000_000 // one))
        ]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


def start(way: str, megabytes: int, workers: int, restarts: int) -> dict[str, Any]:
    """Iterate over short epochs, each of which starts workers.

    Args:
        way: "fork", "forkserver", "spawn"; "template", which is spawned; "template, frozen".
        megabytes: Of the dataset, about.
        workers: How many.
        restarts: Epochs after the first one.

    Returns:
        first, epoch: seconds from the first iter() to the first batch, and to the end of that epoch;
        next, next_epoch: the same of each further epoch, lists.
    """
    dataset: Any = Paths(megabytes)
    if "frozen" in way:
        dataset = shmloader.freeze(dataset)
    template = way.startswith("template")
    loader: Any = shmloader.DataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        multiprocessing_context="spawn" if template else way,
        template=template,
    )
    to_first: list[float] = []
    to_last: list[float] = []
    for _ in range(1 + restarts):
        begun = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        to_first.append(time.perf_counter() - begun)
        for _ in iterator:
            pass
        to_last.append(time.perf_counter() - begun)
    loader.close()
    return {"first": to_first[0], "epoch": to_last[0], "next": to_first[1:], "next_epoch": to_last[1:]}
