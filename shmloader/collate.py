"""Collating straight into the slot, by way of torch's own extension point.

torch's `default_collate` looks up what to do with tensors in `default_collate_fn_map`.  In a worker the stock entry
is replaced by one that lays its output in the slot; so what default_collate makes of arrays, dicts, lists and
namedtuples lands there too, also when a collate function of the user's calls it.  An entry of the user's own wins.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from shmloader._gather import stack_rows
from shmloader._torch import collate_tensor_fn, default_collate_fn_map
from shmloader.objects import is_dense


FEW = 4  # rows
LONG = 16 * 1024  # bytes a row


class Room(Protocol):
    """Where collated tensors go (worker.py)."""

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor | None: ...


class SlotCollate:
    """Stacks the tensors of a batch into the slot, as torch's collate_tensor_fn stacks them into shared memory.

    What it cannot lay there (sparse, nested, quantised, on another device, subclasses) it leaves to torch.
    """

    def __init__(self, room: Room) -> None:
        self._room = room

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if type(first) is torch.Tensor and is_dense(first):
            out = self._room.tensor(first.dtype, (len(batch), *first.shape))
            if out is not None:
                # Checking a row from here costs more than torch.stack's own check, so it must pay: where torch.stack's
                # fixed cost is most of it, or where rows are long enough to be streamed.
                few_or_long = len(batch) < FEW or out.nbytes > len(batch) * LONG
                if few_or_long and stack_rows(batch if type(batch) is list else list(batch), torch.Tensor, out.data_ptr()):
                    return out
                return torch.stack(batch, 0, out=out)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def collate_into(room: Room) -> None:
    """From now on, have this process's default_collate lay its tensors into `room`."""
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = SlotCollate(room)


def collate_apart() -> None:
    """Have this process's default_collate make its tensors in memory of their own again."""
    if isinstance(default_collate_fn_map.get(torch.Tensor), SlotCollate):
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn
