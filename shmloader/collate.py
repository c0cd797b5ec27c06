"""Collating straight into the slot, by way of torch's own extension point.

torch's `default_collate` looks up what to do with tensors in `default_collate_fn_map`.  In a worker the stock entry
is replaced by one that lays its output in the slot; so what default_collate makes of arrays, dicts, lists and
namedtuples lands there too, also when a collate function of the user's calls it.  An entry of the user's own wins.
"""

from __future__ import annotations

from typing import Any

import torch

from shmloader._gather import read_tensors_with
from shmloader._layout import Writer
from shmloader._torch import collate_tensor_fn, default_collate_fn_map, dlpack_c_api


class SlotCollate:
    """Stacks the tensors of a batch into the slot, as torch's collate_tensor_fn stacks them into shared memory.

    What cannot lie there (sparse, nested, quantised, on another device, subclasses) is left to torch.
    """

    def __init__(self, writer: Writer) -> None:
        self._stack = writer.stack

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        stacked = self._stack(batch)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked


def collate_into(writer: Writer) -> None:
    """From now on, have this process's default_collate lay its tensors into the slot."""
    if (capsule := dlpack_c_api()) is not None:
        read_tensors_with(capsule)
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = SlotCollate(writer)
