"""A batch that the user keeps keeps its memory, and nothing else of the user's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, SequentialSampler

import shmloader


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return (torch.full((4,), index) for index in range(16))


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, "in mid-epoch"),
        ({"persistent_workers": True}, "at its end"),
        ({"persistent_workers": True}, "closed"),
        ({"schedule": "steal"}, "at its end"),
        ({"chunk_size": 1}, "in mid-epoch"),
        ({"on_worker_death": "respawn", "on_bad_sample": "skip:1"}, "in mid-epoch"),
        ({"batch_size": None}, "closed"),
        ({"stream": True}, "in mid-epoch"),
        ({"stream": True}, "at its end"),
        ({"in_order": False}, "closed"),
    ],
    ids=repr,
)
def test_a_kept_batch_keeps_no_dataset(options: dict[str, Any], left: str) -> None:
    given = {"batch_size": 2, "num_workers": 2, **options}
    is_stream = given.pop("stream", False)
    dataset: Any = Stream() if is_stream else Rows()
    sampler = None if is_stream else SequentialSampler(dataset)
    loader = shmloader.DataLoader(dataset, sampler=sampler, **given)
    iterator = iter(loader)
    batch = next(iterator)
    if left == "at its end":
        assert len(list(iterator)) == (15 if given["batch_size"] is None or is_stream else 7)
    elif left == "closed":
        loader.close()
    users = [weakref.ref(user) for user in (dataset, loader, iterator, sampler) if user is not None]
    dataset = loader = iterator = sampler = None  # type: ignore[assignment]
    gc.collect()
    assert [user() for user in users] == [None] * len(users)
    assert batch.unique().tolist() in ([0, 1], [0], [0, 2], [2, 3])
