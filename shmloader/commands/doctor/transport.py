"""A test of two seconds: batches through a ring, beside a plain copy of the same bytes."""

from __future__ import annotations

import time
import warnings

import numpy
import torch
from torch.utils.data import Dataset

from shmloader.commands.doctor.finding import Finding, Wanted
from shmloader.dataloader import DataLoader
from shmloader.ring.growth import in_units
from shmloader.system.limits import available_memory

SECONDS = 2.0
SLOTS = 5  # of the test's ring; beside them the batch takes memory twice
LARGEST = 256 << 20  # bytes of the test's batch: larger ones are no faster
SLOW = 1 / 4  # of a plain copy's speed; on a healthy machine it is more than half


class _Prepared(Dataset[torch.Tensor]):
    """One prepared batch, again and again."""

    def __init__(self, size: int) -> None:
        self._batch = torch.ones(size, dtype=torch.uint8, device="cpu")

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._batch


def transport(wanted: Wanted) -> Finding:
    """The cost of a batch through the ring, with a dataset that does nothing."""
    size = max(1, min(wanted.batch_bytes, LARGEST, available_memory() // (4 * SLOTS)))
    try:
        rate = _through_a_ring(size, SECONDS * 3 / 4)
    except Exception as error:  # any error of this machine is a finding
        return Finding("transport", "attention", "no batch comes through a ring", str(error).strip(), "")
    copy = _copied(size, SECONDS / 4)
    state = (
        f"{rate:,.0f} batches/s of {in_units(size)}: {rate * size / 1e9:.3g} GB/s, a plain copy {copy / 1e9:.3g} GB/s"
    )
    if rate * size < SLOW * copy and size >= 1 << 20:  # the cost of a small batch does not depend on its bytes
        return Finding(
            "transport",
            "attention",
            state,
            "the ring is much slower than a copy by one core: something else uses the cores or the memory now",
            "look at what else runs (top), at the quota of the control group, and run this again",
        )
    return Finding("transport", "fine", state, "no loader is quicker than its dataset; this is the most that it can be")


def _through_a_ring(size: int, seconds: float) -> float:
    """Batches a second, with one worker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fork beside threads and a small /dev/shm have their own findings
        with DataLoader(_Prepared(size), batch_size=None, num_workers=1, multiprocessing_context="fork") as loader:
            batches = iter(loader)
            for _ in range(2 * SLOTS):  # until every slot has its pages
                next(batches)
            began, count = time.monotonic(), 0
            while (passed := time.monotonic() - began) < seconds:
                next(batches)
                count += 1
    return count / passed


def _copied(size: int, seconds: float) -> float:
    """Bytes a second of a plain copy by one core, into memory that has its pages."""
    source, target = numpy.ones(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
    began, count = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        numpy.copyto(target, source)
        count += 1
    return count * size / passed
