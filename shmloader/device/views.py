"""Copies tensors of a batch that share memory, so that the copies share it too: NOTE [ Views ] in layout.pxi."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shmloader.batch.replace_tensors import tensors_of

if sys.platform == "linux":
    from shmloader.core.batch_writer import Block, blocks

Copy = Callable[[torch.Tensor], torch.Tensor]
Over = tuple[torch.UntypedStorage, int]  # what a tensor lies over, and at which byte it begins there


def copies(batch: Any, copy: Copy) -> Copy:
    """A function that copies the tensors of a batch as `copy` does, and those that share memory as one block."""
    if sys.platform != "linux":
        return copy
    tensors: list[torch.Tensor] = []
    _collect(batch, tensors)
    found = blocks(tensors)
    if not found:
        return copy
    shared: dict[int, Over] = {}
    for block in found:
        those = [tensors[k] for k in block.leaves]
        shared.update(_copied(block, those, copy))

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in shared:
            return copy(tensor)
        storage, at = shared[id(tensor)]
        blank = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        return blank.set_(storage, at // tensor.itemsize, tensor.shape, tensor.stride())

    return copied


def _collect(batch: Any, found: list[torch.Tensor]) -> None:
    kind = type(batch)
    if kind is torch.Tensor:
        found.append(batch)
    elif kind is dict:
        for part in batch.values():
            _collect(part, found)
    elif kind is list or kind is tuple:
        for part in batch:
            _collect(part, found)
    else:
        found.extend(tensors_of(batch))


def _copied(block: Block, those: list[torch.Tensor], copy: Copy) -> Iterator[tuple[int, Over]]:
    """Copy a block; for the id of each of its tensors, what the copy lies over.  Nothing, if no storage has it all."""
    end = block.address + block.bytes
    for storage in map(torch.Tensor.untyped_storage, those):
        if storage.data_ptr() <= block.address and end <= storage.data_ptr() + storage.nbytes():
            start = (block.address - storage.data_ptr()) // 16 * 16  # a view begins at a whole element
            at = [tensor.data_ptr() - storage.data_ptr() - start for tensor in those]
            if any(offset % tensor.itemsize for offset, tensor in zip(at, those, strict=True)):
                return
            size = end - storage.data_ptr() - start
            copied = copy(
                torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, start, (size,), (1,))
            ).untyped_storage()
            yield from ((id(tensor), (copied, offset)) for tensor, offset in zip(those, at, strict=True))
            return
