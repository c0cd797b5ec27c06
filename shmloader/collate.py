"""Collating straight into the slot, by way of torch's own extension point.

torch's `default_collate` looks up what to do with tensors in `default_collate_fn_map`.  In a worker the stock entry
is replaced by one that stacks them in the slot, as torch's stacks them in shared memory; so what default_collate makes
of arrays, dicts, lists and namedtuples lands there too, also when a collate function of the user's calls it.  What
cannot lie there (sparse, nested, quantised, on another device, subclasses) is left to torch.  An entry of the user's
own wins.
"""

from __future__ import annotations

import torch

from shmloader._layout import Writer
from shmloader._torch import collate_tensor_fn, default_collate_fn_map


def collate_into(writer: Writer) -> None:
    """From now on, have this process's default_collate lay its tensors into the slot."""
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = writer.collate
