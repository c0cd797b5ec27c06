"""A worker keeps the memory of one batch's samples, because the next batch needs as much."""

from __future__ import annotations

import resource

import torch
from torch.utils.data import Dataset

import shmloader

SIDE, BATCH, WORKERS = 128, 64, 4
PAGES = 3 * SIDE * SIDE * BATCH // 4096  # of a batch


class FaultsSoFar(Dataset[tuple[torch.Tensor, int]]):
    """Each sample is a new tensor, and the number of page faults that its worker has had so far."""

    def __len__(self) -> int:
        return 20 * WORKERS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, SIDE, SIDE), 7, dtype=torch.uint8), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_a_batch_faults_no_page_of_the_batch_before() -> None:
    """Where a process's heap begins is drawn, and used to decide it.  So there are several workers."""
    with shmloader.DataLoader(
        FaultsSoFar(), BATCH, num_workers=WORKERS, multiprocessing_context="spawn", prefetch_factor=1
    ) as loader:
        faults = [int(so_far[-1]) for _, so_far in loader]
    taken = [faults[worker - WORKERS] - faults[worker - 10 * WORKERS] for worker in range(WORKERS)]
    assert max(taken) < 9 * PAGES / 4, taken
