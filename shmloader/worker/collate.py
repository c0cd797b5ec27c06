"""Collating straight into the slot, by way of torch's own extension point.

torch's `default_collate` looks up in `default_collate_fn_map` what to do with tensors.  torch's own entry stacks them
in shared memory.  In a worker it is replaced by one that stacks them in the slot.  So whatever default_collate makes of
arrays, dicts, lists and namedtuples lands in the slot, also if the user's collate function calls it.  Tensors that
cannot lie there (sparse, nested, quantised, on another device, subclasses) are left to torch.  If the user has replaced
the entry, the user's entry stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shmloader._torch import collate_tensor_fn, default_collate_fn_map
from shmloader.core.batch_writer import Writer


def collate_into(writer: Writer) -> None:
    """From now on, have default_collate lay its tensors into the slot, in this process."""
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = collate_by(writer)


def collate_by(writer: Writer) -> Callable[..., torch.Tensor]:
    """What does what torch's collate_tensor_fn does, into the payload that is being filled if it can lie there."""

    def collate(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        stacked = writer.stack(batch)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked

    return collate
