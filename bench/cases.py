"""What is loaded: the cases, and the two loaders that load them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

LOADERS = ("torch", "shmloader")
ENDLESS = 1 << 40  # samples; no measurement gets to the end of an epoch


@dataclass(frozen=True)
class Case:
    """One kind of batch.

    Args:
        name: for the command line and the JSON.
        label: for tables and pictures.
        dtype, shape: of a sample's tensors.
        tensors: how many a sample has; more than one make it a dict.
        batch_size: samples in a batch.
        is_large: whether copying its bytes is what takes the time, so that a ceiling of copying says something.
    """

    name: str
    label: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    tensors: int
    batch_size: int
    is_large: bool = False

    @property
    def sample_bytes(self) -> int:
        return self.tensors * self.dtype.itemsize * torch.Size(self.shape).numel()

    @property
    def batch_bytes(self) -> int:
        return self.batch_size * self.sample_bytes

    def sample(self) -> Any:
        """A sample, its bytes written (untouched pages of zeros would be cheaper to read than real ones)."""
        tensors = [torch.ones(self.shape, dtype=self.dtype) for _ in range(self.tensors)]
        return tensors[0] if self.tensors == 1 else {f"field{k}": tensor for k, tensor in enumerate(tensors)}


CASES = {
    case.name: case
    for case in (
        Case("uint8-images", "uint8 256 x 3x224x224", torch.uint8, (3, 224, 224), 1, 256, is_large=True),
        Case("float32-images", "float32 64 x 3x224x224", torch.float32, (3, 224, 224), 1, 64, is_large=True),
        Case("small-images", "uint8 128 x 3x32x32", torch.uint8, (3, 32, 32), 1, 128),
        Case("scalar", "one float32 scalar", torch.float32, (), 1, 1),
        Case("dict", "dict of 120 float32 8 x 4", torch.float32, (4,), 120, 8),
    )
}


class Repeated(Dataset[Any]):
    """One sample, again and again, by reference: a dataset that costs nothing."""

    def __init__(self, sample: Any, length: int) -> None:
        self._sample = sample
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._sample


def loader_class(name: str) -> Any:
    """The DataLoader class that goes by one of the names in LOADERS."""
    if name == "torch":
        return torch.utils.data.DataLoader
    import shmloader

    return shmloader.DataLoader
