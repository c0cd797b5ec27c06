"""Gathers how long each rank waits.  In a step that synchronises, all ranks wait for the slowest one."""

from __future__ import annotations

import dataclasses

import torch.distributed

from shmloader.statistics.evidence import Evidence


def with_ranks(evidence: Evidence) -> Evidence:
    """The evidence, with each rank's wait for a batch added.

    Raises:
        RuntimeError: torch.distributed is not initialised, or not all ranks have asked by its timeout.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise RuntimeError(
            "report(ranks=True) asks the other ranks, and torch.distributed is not initialised. Call "
            "init_process_group() first, or leave ranks out."
        )
    waits: list[float] = [0.0] * torch.distributed.get_world_size()
    try:
        torch.distributed.all_gather_object(waits, evidence.wait_s)
    except RuntimeError as error:
        raise RuntimeError(
            "report(ranks=True) gathers one number from each rank, and did not get all of them. Every rank must call "
            f"it, at the same place in its loop. torch.distributed raised: {error}"
        ) from error
    return dataclasses.replace(evidence, ranks=waits, rank=torch.distributed.get_rank())
