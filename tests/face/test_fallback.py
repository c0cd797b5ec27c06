"""Iterable datasets, and what the ring leaves to torch's own iterator: torch's batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Augmented, assert_same_outcome, label
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

import shmloader
from shmloader.trainer.iterator import RingIterator


class Stream(IterableDataset):
    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        info = get_worker_info()
        for k in range(info.id if info else 0, 20, info.num_workers if info else 1):
            yield torch.full((3,), k) + torch.rand(3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"batch_size": None}, {"persistent": True}], ids=label)
def test_iterable_datasets(workers: int, options: dict[str, Any]) -> None:
    options = dict(options)
    persistent = bool(options.pop("persistent", False) and workers)
    assert_same_outcome(
        Stream, **{"batch_size": 3, **options}, num_workers=workers, persistent_workers=persistent, epochs=2
    )


@pytest.mark.off_the_ring
@pytest.mark.filterwarnings("ignore")  # test_off_the_ring.py looks at them
def test_datapipes() -> None:
    assert_same_outcome(
        lambda: IterableWrapper(range(20)).shuffle().sharding_filter(),
        batch_size=4,
        num_workers=2,
        epochs=2,
        shuffle=True,
    )


def test_which_iterator() -> None:
    loader = shmloader.DataLoader(Augmented(), num_workers=1)
    assert isinstance(iter(loader), RingIterator)
    loader.in_order = False
    assert isinstance(iter(loader), RingIterator)
    assert not isinstance(iter(shmloader.DataLoader(Augmented())), RingIterator)
    assert isinstance(iter(shmloader.DataLoader(Stream(), num_workers=1)), RingIterator)


def test_closing_what_torch_iterates() -> None:
    with shmloader.DataLoader(Stream(), num_workers=2, persistent_workers=True) as loader:
        assert len(list(loader)) == 20
    assert loader._iterator is None
