"""What the transport cases load: samples that are there already, so that a dataset costs nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

PERIOD = 61  # samples until a dataset begins again; divides no batch size, so no two batches in a row are alike
SEED = 5


class Pool(Dataset[Any]):
    """Prebuilt samples, by reference, in an order that a batch out of its place would not fit."""

    def __init__(self, samples: list[Any], length: int) -> None:
        self._samples = samples
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % PERIOD]


def uniform(dtype: torch.dtype, shape: tuple[int, ...], tensors: int) -> list[Any]:
    """Tensors of one shape, or dicts of them.  Two samples are all there are, so that they stay in the cache."""
    made = []
    for value in (1, 2):  # their bytes written: untouched pages of zeros would be cheaper to read than real ones
        fields = [torch.full(shape, value, dtype=dtype) for _ in range(tensors)]
        made.append(fields[0] if tensors == 1 else {f"field{k}": field for k, field in enumerate(fields)})
    choose = random.Random(SEED)
    return [choose.choice(made) for _ in range(PERIOD)]


def detections() -> list[Any]:
    """Five tensors a picture, as many rows as it has boxes."""
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for k in range(PERIOD):
        boxes = int(torch.randint(1, 41, (), generator=generator))
        made.append(
            {
                "boxes": torch.rand(boxes, 4, generator=generator),
                "labels": torch.randint(0, 91, (boxes,), generator=generator),
                "area": torch.rand(boxes, generator=generator),
                "iscrowd": torch.zeros(boxes, dtype=torch.uint8),
                "image_id": torch.tensor([k]),
            }
        )
    return made


def as_lists(samples: list[dict[str, torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    """Collate pictures with their own numbers of boxes, as detection code does: a list a field."""
    return {field: [sample[field] for sample in samples] for field in samples[0]}


def tokens() -> list[Any]:
    """Sequences of 16 to 512 tokens."""
    generator = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(16, 513, (PERIOD,), generator=generator).tolist()
    return [torch.randint(1, 50_000, (length,), generator=generator) for length in lengths]


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Collate sequences to the longest of them, with a mask."""
    ids = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).to(torch.int64)}


def leaves(batch: Any) -> list[torch.Tensor]:
    """The tensors of a batch, in their order."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch
    return [leaf for part in parts for leaf in leaves(part)]


def as_(change: Callable[[Any], Any], batch: Any) -> Any:
    """The batch with each of its leaves changed: tensors to arrays, say, or arrays to tensors."""
    if isinstance(batch, dict):
        return {field: as_(change, part) for field, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [as_(change, part) for part in batch]
    return change(batch)
