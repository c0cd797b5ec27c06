"""Copies tensors of a batch that share memory, so that the copies share it too: NOTE [ Views ] in layout.pyx."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from shmloader.batch.replace_tensors import tensors_of

if sys.platform == "linux":
    from shmloader.core.layout import blocks

Copy = Callable[[torch.Tensor], torch.Tensor]


class Copies:
    """Copies the tensors of one batch.

    Args:
        batch: The batch.
        copy: Copies a tensor.
    """

    def __init__(self, batch: Any, copy: Copy) -> None:
        self._batch = batch
        self._copy = copy
        self._shared: dict[int, tuple[torch.UntypedStorage, int]] | None = (
            None  # by id: what each copy lies over, where
        )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not _is_plain(tensor) or tensor.untyped_storage().nbytes() == tensor.nbytes:
            return self._copy(tensor)
        if self._shared is None:
            self._shared = dict(self._find())
        if id(tensor) not in self._shared:
            return self._copy(tensor)
        storage, at = self._shared[id(tensor)]
        blank = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        return blank.set_(storage, at // tensor.itemsize, tensor.shape, tensor.stride())

    def _find(self) -> Any:
        tensors = [tensor for tensor in tensors_of(self._batch) if _is_plain(tensor)]
        for block in blocks(tensors):
            those = [tensors[k] for k in block.leaves]
            storage = next(
                (storage for storage in map(torch.Tensor.untyped_storage, those) if _has(storage, block)), None
            )
            if storage is None:
                continue
            start = (block.address - storage.data_ptr()) // 16 * 16  # a view begins at a whole element
            at = [tensor.data_ptr() - storage.data_ptr() - start for tensor in those]
            if any(offset % tensor.itemsize for offset, tensor in zip(at, those, strict=True)):
                continue
            size = block.address + block.bytes - storage.data_ptr() - start
            copied = self._copy(torch.empty(0, dtype=torch.uint8).set_(storage, start, (size,))).untyped_storage()
            yield from ((id(tensor), (copied, offset)) for tensor, offset in zip(those, at, strict=True))


def _is_plain(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.layout is not torch.strided:
        return False
    return not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)


def _has(storage: torch.UntypedStorage, block: Any) -> bool:
    """Whether a block lies in a storage."""
    start = int(storage.data_ptr())
    return bool(start <= block.address and block.address + block.bytes <= start + storage.nbytes())
