"""What the datasets of the patterns return, and how their batches are collated.  Each call makes a new sample."""

from __future__ import annotations

import datetime
import decimal
import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

Make = Callable[[Any], Any]  # the sample of an index
Colour = enum.Enum("Colour", ["RED", "GREEN"])


class Samples(Dataset[Any]):
    def __init__(self, make: Make, length: int) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._make(index)


class Stream(IterableDataset[Any]):
    def __init__(self, make: Make, length: int) -> None:
        self._make, self._length = make, length

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        return map(self._make, range(worker.id, self._length, worker.num_workers) if worker else range(self._length))


def varies(index: int, least: int, most: int) -> int:
    """A number that looks random and is always the same."""
    return least + index * 2654435761 % (1 << 32) % (most - least + 1)


def image(side: int, dtype: torch.dtype = torch.uint8) -> Make:
    return lambda index: (torch.full((3, side, side), index % 251, dtype=dtype), index)


def sized(size: Callable[[int], int]) -> Make:
    """As many bytes as `size` says of an index."""
    return lambda index: torch.full((size(index),), index % 251, dtype=torch.uint8)


def annotation(index: int) -> dict[str, Any]:
    """Nested lists and dicts, of another shape each time, as in COCO's JSON."""
    objects = [
        {"box": [0.5 * k, 1.5, 2.5, 3.5], "label": k, "polygon": [1.25] * varies(index + k, 3, 12), "crowd": False}
        for k in range(varies(index, 0, 8))
    ]
    return {"id": index, "file": f"train/{index:012}.jpg", "size": (480, 640), "objects": objects}


def detection(index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    boxes = varies(index, 1, 40)
    return torch.full((3, 64, 64), 1.0), {"boxes": torch.ones(boxes, 4), "labels": torch.ones(boxes, dtype=torch.int64)}


def dates(index: int) -> dict[str, Any]:
    day = datetime.datetime(2026, 1, 1) + datetime.timedelta(minutes=index)
    return {"at": day, "on": day.date(), "price": decimal.Decimal(index)}


def sparse(index: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.arange(40).view(2, 20), torch.ones(20), (64, 64), check_invariants=False)


def then(change: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Collate as usual, and change the result in the worker."""
    return lambda batch: change(*default_collate(batch))


def padded(batch: list[torch.Tensor]) -> Any:
    return pad_sequence(batch, batch_first=True), torch.tensor([len(each) for each in batch])
