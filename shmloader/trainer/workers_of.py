"""Which workers an iterator gets: its own, and far ones beside them."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import Any

import torch

from shmloader.core.trainer import TrainerSide
from shmloader.options import Options
from shmloader.ring.segment import Segment
from shmloader.statistics.account import account_of
from shmloader.trainer.worker_set import WorkerSet
from shmloader.worker_count import local_workers


def workers_of(loader: Any, options: Options, iterator: Any, ring: TrainerSide, segment: Segment) -> WorkerSet:
    """The workers, which have not started.

    Args:
        loader: The loader.
        options: Its options.
        iterator: Theirs.  They do not keep it.
        ring: Its ring.
        segment: The ring's memory.
    """
    given = _context_of(loader, options), ring, segment
    others: dict[str, Any] = {
        "respawn": options.respawns,
        "reissue": not iterator._streams,
        "timeout": iterator._timeout,
        "outlives": options.workers_outlive_signals,
    }
    if options.far_workers is None:
        return WorkerSet(*given, **others)
    from shmloader.trainer.far_worker_set import FarWorkerSet  # here, because it imports all that far workers need

    account = account_of(loader)
    local = local_workers(loader)
    far = FarWorkerSet(*given, far=options.far_workers, local=local, nodes=account.nodes, **others)
    account.note_nodes = weakref.WeakMethod(far.note_nodes)
    return far


def _context_of(loader: Any, options: Options) -> Any:
    """What starts the workers of a loader: multiprocessing, or a context of it."""
    context = loader.multiprocessing_context
    if context is None:
        context = torch.multiprocessing
    if options.far_workers is not None and getattr(context, "get_start_method", str)() == "fork":
        return multiprocessing.get_context("forkserver")  # their engine runs threads in this process
    return context
