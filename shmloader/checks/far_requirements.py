"""Checks what far workers need of a loader, and refuses what they cannot do."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset

from shmloader.options import Options, UnsuitableOption
from shmloader.private import of_torch
from shmloader.worker_count import WorkerCount


def check_far_workers(loader: Any, options: Options) -> None:
    """Check whether a loader can have its far workers.

    Raises:
        UnsuitableOption: It cannot.
    """
    if isinstance(loader.dataset, IterableDataset) or of_torch.is_pipe(loader.dataset):
        raise UnsuitableOption(
            f"far_workers needs a map-style dataset, but got {type(loader.dataset).__name__}. The place of a stream "
            "lies in its worker, and would be lost with a machine. Leave far_workers out.",
            "far_workers",
        )
    for name, asked, why in (
        ("chunk_size", options.chunk_size is not None, "a far worker sends whole batches"),
        ("group_by", options.group_by is not None, "a far worker sends whole batches"),
        (
            "look_ahead",
            bool(options.look_ahead),
            "a far worker knows the indices of the batch that it makes, and no more",
        ),
        ("in_order=False", not loader.in_order, "which worker makes a batch then depends on who is quicker"),
    ):
        if asked:
            text = f"far_workers and {name} cannot go together: {why}. Leave one of the two out."
            raise UnsuitableOption(text, "far_workers", name)
    context = loader.multiprocessing_context
    if context is not None and getattr(context, "get_start_method", str)() == "fork":
        raise UnsuitableOption(
            "far_workers cannot go with multiprocessing_context='fork', because Ray runs threads in this process, and "
            "a process that is forked beside threads may wait for ever for a lock. Leave multiprocessing_context out: "
            "then workers start by a fork server, which has no threads.",
            "far_workers",
        )
    count = loader.num_workers
    if not isinstance(count, WorkerCount) or count - count.local != options.far_workers.num:
        raise UnsuitableOption(
            f"num_workers={count!r} does not count the {options.far_workers.num} far workers. num_workers "
            "cannot be set later. Give it when the loader is made.",
            "far_workers",
        )
