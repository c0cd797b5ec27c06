"""Whether an option of the loader has a value that it may have; torch checks its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from shmloader import _torch
from shmloader.device import accelerator
from shmloader.row_wise import is_row_wise


def check_ring(
    spare_slots: int,
    ring_memory: str,
    max_ring_bytes: int | None,
    on_worker_death: str,
    workers_outlive_signals: bool,
) -> None:
    if isinstance(spare_slots, bool) or not isinstance(spare_slots, int) or spare_slots < 0:
        raise ValueError(
            f"spare_slots should be a non-negative integer, but got spare_slots={spare_slots!r}; "
            "0 hands every batch out as a copy, 2 is the default"
        )
    if ring_memory not in ("auto", "posix", "memfd"):
        raise ValueError(f"ring_memory should be 'auto', 'posix' or 'memfd', but got ring_memory={ring_memory!r}")
    if max_ring_bytes is not None and (
        isinstance(max_ring_bytes, bool) or not isinstance(max_ring_bytes, int) or max_ring_bytes <= 0
    ):
        raise ValueError(
            f"max_ring_bytes should be a positive integer of bytes, or None, but got max_ring_bytes={max_ring_bytes!r}"
        )
    if not isinstance(workers_outlive_signals, bool):
        raise ValueError(
            f"workers_outlive_signals should be True or False, but got "
            f"workers_outlive_signals={workers_outlive_signals!r}; False lets SIGTERM and Ctrl-C end them, as in torch"
        )
    if on_worker_death not in ("raise", "respawn"):
        raise ValueError(f"on_worker_death should be 'raise' or 'respawn', but got on_worker_death={on_worker_death!r}")


def check_work(schedule: str, chunk_size: int | None, detail: bool) -> None:
    if schedule not in ("round_robin", "steal"):
        raise ValueError(f"schedule should be 'round_robin' or 'steal', but got schedule={schedule!r}")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size <= 0):
        raise ValueError(
            f"chunk_size should be a positive integer of samples, or None, but got chunk_size={chunk_size!r}"
        )
    if not isinstance(detail, bool):
        raise ValueError(
            f"detail should be True or False, but got detail={detail!r}; True has workers look at their stacks"
        )


def check_device(device: Any, device_prefetch: int, on_device: Any) -> None:
    if isinstance(device_prefetch, bool) or not isinstance(device_prefetch, int) or device_prefetch < 1:
        raise ValueError(
            f"device_prefetch should be a positive integer, but got device_prefetch={device_prefetch!r}; "
            "each is a batch of memory on the device, 2 is the default"
        )
    if on_device is not None and not callable(on_device):
        raise ValueError(f"on_device should be callable with a batch, or None, but got on_device={on_device!r}")
    if device is None:
        if on_device is not None:
            raise ValueError("on_device needs device: say where batches are to be delivered, device='cuda' or 'cpu'")
        return
    try:
        at = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device should be a torch.device or its name, but got device={device!r}: {error}") from None
    present = accelerator.kind()
    if at.type not in ("cpu", present):
        found = f"whose accelerator is {present!r}" if present else "which finds no accelerator"
        raise ValueError(
            f"device={device!r} is no device of this torch ({torch.__version__}), {found}: "
            f"use {present or 'cpu'!r}, or a torch that was built for it"
        )
    if at.type != "cpu" and at.index is not None and at.index >= accelerator.count():
        raise ValueError(f"device={device!r} does not exist: there are {accelerator.count()}, counted from 0")


def check_division(loader: Any) -> None:
    """Raise where work cannot be stolen or cut as was asked for."""
    options = {
        "schedule='steal'": loader.schedule == "steal",
        "chunk_size": loader.chunk_size is not None,
        "sample_seeds=True": loader.sample_seeds,
        "prefetch_epochs=True": loader.prefetch_epochs,
    }
    for name, asked in options.items():
        if not asked:
            continue
        if isinstance(loader.dataset, IterableDataset) or _torch.is_pipe(loader.dataset):
            raise ValueError(
                f"{name} needs a map-style dataset, but got {type(loader.dataset).__name__}: each worker reads its "
                "own part of a stream, where no sample has a number and no other worker can go on"
            )
        if not loader.in_order:
            raise ValueError(
                f"{name} delivers batches in order, but got in_order=False: leave one of the two out; where work "
                "is stolen, a slow batch holds up no worker"
            )
    if loader.prefetch_epochs and loader.num_workers and not loader.persistent_workers:
        raise ValueError(
            "prefetch_epochs=True needs persistent_workers=True: workers that go on with the next epoch must outlive "
            "this one. loader.start() begins an epoch early with workers of its own"
        )
    if loader.chunk_size is None:
        return
    if loader.batch_sampler is None:
        raise ValueError("chunk_size cuts batches, but got batch_size=None: leave one of the two out")
    if not is_row_wise(loader.collate_fn):
        raise ValueError(
            f"chunk_size needs default_collate or a collate_fn that is marked with shmloader.row_wise, but got "
            f"collate_fn={loader.collate_fn!r}: mark it if what it makes of some samples is the rows that they "
            "have in the whole batch"
        )


def check_bad_samples(loader: Any) -> None:
    """Raise where bad samples cannot be skipped as was asked for."""
    what, most = loader.on_bad_sample, loader.max_bad_samples
    if what not in ("raise", "skip"):
        raise ValueError(f"on_bad_sample should be 'raise' or 'skip', but got on_bad_sample={what!r}")
    if most is not None:
        is_count = isinstance(most, int) and not isinstance(most, bool) and most >= 0
        if not is_count and not (isinstance(most, float) and 0 < most <= 1):
            raise ValueError(
                "max_bad_samples should be a non-negative integer, how many samples of an epoch may be bad, or a float "
                f"above 0 and at most 1, their share, but got max_bad_samples={most!r}; None is 0.001"
            )
        if what == "raise":
            raise ValueError(f"max_bad_samples={most!r} needs on_bad_sample='skip': else the first bad sample raises")
    if what == "skip" and (isinstance(loader.dataset, IterableDataset) or _torch.is_pipe(loader.dataset)):
        raise ValueError(
            f"on_bad_sample='skip' needs a map-style dataset, but got {type(loader.dataset).__name__}: in a stream no "
            "sample has an index that another could be derived from. Catch the exception where the stream is read"
        )
