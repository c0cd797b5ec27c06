"""Batches of far workers beside those of local ones."""

from __future__ import annotations

import copy
from typing import Any

from conftest import iterate, seed_all
from drawn import Drawn
from engine import Here

import shmloader

DRAWN = Drawn()


def batches(local: int, far: int, *, dataset: Any = None, epochs: int = 1, **options: Any) -> list[Any]:
    seed_all()
    if far:
        options["far_workers"] = Here(far)
    got: list[Any] = []
    data = DRAWN if dataset is None else dataset
    with shmloader.DataLoader(data, batch_size=4, shuffle=True, num_workers=local, **options) as loader:
        for _ in range(epochs):
            got += [copy.deepcopy(batch) for batch in iterate(loader)]
    return got
