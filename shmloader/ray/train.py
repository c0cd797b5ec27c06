"""prepare_data_loader() for Ray Train: gives a loader of ours the share and the device of its training worker.
The loader keeps its options and its state_dict().

Ray's function builds another loader of torch's from eleven arguments of the given one, and wraps it in a class that has
no state_dict().
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from shmloader.dataloader import DataLoader
from shmloader.options import DEFAULTS, Options
from shmloader.resume.distributed import DistributedSampler
from shmloader.system.user_line import warn_once

_NOT_TAKEN = {"self", "shuffle", "sampler", "batch_sampler", *DEFAULTS}  # from a loader's attributes


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[Any]:
    """Prepare a loader for a training function of Ray Train, in place of `ray.train.torch.prepare_data_loader`.

    The result is a `shmloader.DataLoader` with all options of the given one, torch's (`prefetch_factor`,
    `persistent_workers`, `in_order`) and ours.  Its `state_dict` can be loaded on any number of training workers.

    Args:
        data_loader: The loader.  It is not used any more if another one is returned.
        add_dist_sampler: Whether each training worker gets its share of the samples, by a
            `shmloader.DistributedSampler` (default True).  It shuffles unless the loader's sampler is a
            SequentialSampler.  A loader that has a DistributedSampler keeps it, and so does one over an
            IterableDataset.
        move_to_device: Whether batches are delivered on the training worker's device (default True), as with `device=`.
            A `device` that the loader was given stays.
        auto_transfer: As in Ray, and without effect: batches are always copied ahead, on a stream of their own.

    Raises:
        TypeError: It is no `shmloader.DataLoader`, or of a class derived from it, which cannot be rebuilt.
        ValueError: It has a batch sampler of its own, which cannot be divided.
        RuntimeError: This is no training worker of Ray Train.

    Example:
        >>> loader = shmloader.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4, schedule="steal")
        >>> loader = shmloader.ray.prepare_data_loader(loader)
        >>> loader.set_epoch(epoch)
    """
    import ray.train.torch

    if not isinstance(data_loader, DataLoader):
        raise TypeError(
            f"prepare_data_loader needs a shmloader.DataLoader, but got {type(data_loader).__name__}. Build that, or "
            "call ray.train.torch.prepare_data_loader."
        )
    context = ray.train.get_context()
    world, rank = context.get_world_size(), context.get_world_rank()
    has_share = isinstance(data_loader.sampler, torch.utils.data.DistributedSampler)
    if world > 1 and add_dist_sampler and not has_share and not isinstance(data_loader.dataset, IterableDataset):
        data_loader = _rebuilt(data_loader, world, rank)
    device = ray.train.torch.get_device()
    options = Options.of(data_loader)
    if move_to_device and options.device is None and device.type != "cpu":
        replace(options, device=device).give_to(data_loader)
    return data_loader


def _rebuilt(loader: DataLoader[Any], world: int, rank: int) -> DataLoader[Any]:
    """A loader with the same arguments, but a share of the samples."""
    if type(loader) is not DataLoader:
        raise TypeError(
            f"prepare_data_loader cannot build another {type(loader).__name__}, whose arguments it does not know. Give "
            "it a shmloader.DistributedSampler yourself."
        )
    if loader.batch_sampler is not None and loader.batch_size is None:
        raise ValueError(
            f"prepare_data_loader cannot divide the batches of {type(loader.batch_sampler).__name__} among {world} "
            "training workers. Have it draw from a shmloader.DistributedSampler, and give add_dist_sampler=False."
        )
    if not isinstance(loader.sampler, (SequentialSampler, RandomSampler)) and rank == 0:
        warn_once(
            f"prepare_data_loader replaces {type(loader.sampler).__name__} by a shmloader.DistributedSampler, so that "
            f"each of {world} training workers gets its share. Give add_dist_sampler=False to keep it."
        )
    names = inspect.signature(DataLoader.__init__).parameters.keys() - _NOT_TAKEN
    arguments = {name: getattr(loader, name) for name in names}
    shuffles = not isinstance(loader.sampler, SequentialSampler)
    sampler: Any = DistributedSampler(loader.dataset, world, rank, shuffle=shuffles)
    loader.close()
    return DataLoader(sampler=sampler, **arguments, **Options.of(loader).as_arguments())
