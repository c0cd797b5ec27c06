"""Which of a job's processes this is, and whether a state is for it alone."""

from __future__ import annotations

import os
from typing import Any

import torch

from shmloader.resume import iterables, seek
from shmloader.resume.seek import sampler_of


def this_rank() -> int:
    """Which of the job's processes this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)  # torchrun's


def rank_of_state(loader: Any) -> int | None:
    """This rank, if the loader's state is valid for it only."""
    own = seek.keeps_state(sampler_of(loader)) is not None or iterables.workers_of(loader) is not None
    return this_rank() if own else None
