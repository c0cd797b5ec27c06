"""Collating straight into the slot, by way of torch's own extension point.
It decides which columns default_collate writes into the slot, and which ones are left to torch's code.

torch's `default_collate` looks up in `default_collate_fn_map` how to collate a column of tensors, arrays or numbers.
torch's own entries make a new tensor in shared memory.  In a worker they are replaced by entries that write the column
into the slot.  So all tensors that default_collate makes of arrays, dicts, lists and namedtuples lie in the slot, also
if the user's collate function calls it.  Columns that are not plain (sparse tensors, subclasses, integers beside
booleans, read-only arrays) are left to torch's entry.  If the user has replaced an entry, the user's entry stays.

If default_collate itself is the collate function, and all entries are ours, PlainCollate walks through the samples
instead of it (collate_plain.pxi).  fetch_from() in fetch.py compares the loader's collate function with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate

from shmloader.core.batch_writer import PlainCollate, Writer
from shmloader.private import of_torch
from shmloader.private.of_torch import collate_tensor_fn, default_collate_fn_map

Collate = Callable[[Any], Any]
Entry = Callable[..., Any]


def collate_into(writer: Writer) -> Collate:
    """From now on, default_collate writes its columns into the slot, in this process.

    Returns:
        A function that does default_collate's work on a worker's samples.
    """
    were_torchs = list(default_collate_fn_map.items()) == of_torch.collate_entries()
    tensors = collate_by(writer)
    ours: dict[Any, Entry] = {collate_tensor_fn: tensors}
    modes = of_torch.count_modes
    if modes is not None:
        arrays = of_torch.collate_numpy_array_fn
        ours[arrays] = _stock_unless(modes, writer.stack_arrays, arrays, tensors)
        for numbers in (of_torch.collate_numpy_scalar_fn, of_torch.collate_float_fn, of_torch.collate_int_fn):
            ours[numbers] = _stock_unless(modes, writer.stack_numbers, numbers, None)
    for key, entry in list(default_collate_fn_map.items()):
        if entry is not None and entry in ours:
            default_collate_fn_map[key] = ours[entry]
    if modes is None or of_torch.collate is None or not were_torchs:
        return default_collate
    return PlainCollate(writer, default_collate_fn_map, of_torch.collate, default_collate, modes)


def collate_by(writer: Writer) -> Entry:
    """A function in place of torch's collate_tensor_fn, which collates into the payload if the column fits there."""

    def collate(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        stacked = writer.stack(batch)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked

    return collate


def _stock_unless(modes: Callable[[], int], stack: Callable[[Any], Any], stock: Entry, tensors: Entry | None) -> Entry:
    """An entry for a column of arrays or numbers.

    Args:
        modes: How many torch modes see torch's functions or change them (a default device is one).
        stack: Makes the column's tensor; None if it is not plain.
        stock: torch's entry, which collates all other columns.
        tensors: The function that torch's entry calls with its tensors.  If the map has another, that is called.
    """

    def collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        is_ours = tensors is None or (collate_fn_map is not None and collate_fn_map.get(torch.Tensor) is tensors)
        stacked = stack(batch) if is_ours and not modes() else None
        return stock(batch, collate_fn_map=collate_fn_map) if stacked is None else stacked

    return collate
