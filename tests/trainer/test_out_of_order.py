"""in_order=False: a slow batch holds up nobody; what each worker gives still comes in that worker's order."""

from __future__ import annotations

import inspect
import random
import time
from typing import Any

import pytest
import torch
import torch.utils.data.dataloader as torchs
from conftest import BOTH, Augmented
from torch.utils.data import IterableDataset, get_worker_info

import shmloader
from shmloader.trainer.iterator import RingIterator


class Held(torch.utils.data.Dataset):
    """Index 0 waits for an event; the others do not."""

    def __init__(self, length: int, event: Any) -> None:
        self.length, self.event = length, event

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            assert self.event.wait(100)
        info = get_worker_info()
        assert info is not None
        return info.id, index


@pytest.mark.parametrize("workers", [2, 3])
def test_a_slow_batch_holds_up_nobody(workers: int) -> None:
    """The ring has 4 or 6 entries; far more sequences than that pass the one that is held."""
    event = torch.multiprocessing.get_context("fork").Event()
    iterator = iter(shmloader.DataLoader(Held(203, event), batch_size=None, num_workers=workers, in_order=False))
    assert isinstance(iterator, RingIterator)
    stuck = 2  # index 0, and the one that waits behind it in the same worker
    before = [next(iterator) for _ in range(203 - stuck)]
    assert all(worker != 0 for worker, _ in before)
    event.set()
    assert [next(iterator), next(iterator)] == [[0, 0], [0, workers]]
    assert sorted(index for _, index in before) == sorted(set(range(203)) - {0, workers})
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.skipif(
    len(inspect.signature(torchs._MultiProcessingDataLoaderIter._process_data).parameters) < 3,
    reason="this torch (before 2.8) gives the next index to a worker that has its share already",
)
def test_the_order_is_torchs_where_time_decides_it() -> None:
    """torch's rule: the next index goes to the next worker in turn that holds fewer than its share."""

    def epochs(kind: type) -> Any:
        class Slow(Held):
            """Index 0 comes after all that the other worker makes."""

            def __getitem__(self, index: int) -> Any:
                got = super().__getitem__(index)
                if index == 0:
                    event.clear()
                    time.sleep(0.6)  # until the last one has arrived
                elif index == 11:
                    event.set()
                return got

        event = torch.multiprocessing.get_context("fork").Event()
        loader = kind(Slow(12, event), batch_size=None, num_workers=2, in_order=False, persistent_workers=True)
        return [list(loader) for _ in range(2)]

    theirs, ours = (epochs(kind) for kind in BOTH)
    assert ours == theirs


class Uneven(Augmented):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        time.sleep(random.random() * 0.002)
        return info.id, index


def test_every_batch_once_and_each_workers_in_order() -> None:
    loader = shmloader.DataLoader(Uneven(800), batch_size=None, num_workers=3, in_order=False, prefetch_factor=3)
    got = list(loader)
    assert sorted(index for _, index in got) == list(range(800))
    for worker in range(3):
        indices = [index for by, index in got if by == worker]
        assert indices == sorted(indices) and indices


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        for k in range(7 * (info.id + 1)):
            yield 100 * info.id + k


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterable_dataset(persistent: bool) -> None:
    loader = shmloader.DataLoader(
        Stream(), batch_size=None, num_workers=3, in_order=False, persistent_workers=persistent
    )
    for _ in range(2):
        got = list(loader)
        assert sorted(got) == [100 * worker + k for worker in range(3) for k in range(7 * (worker + 1))]
        for worker in range(3):
            assert [k for k in got if k // 100 == worker] == sorted(k for k in got if k // 100 == worker)
    loader.close()


def test_exceptions_and_an_epoch_left_half_way() -> None:
    class Faulty(Uneven):
        def __getitem__(self, index: int) -> Any:
            if index % 10 == 3:
                raise ValueError(str(index))
            return super().__getitem__(index)

    loader = shmloader.DataLoader(Faulty(100), batch_size=None, num_workers=2, in_order=False, persistent_workers=True)
    next(iter(loader))
    iterator, seen, failed = iter(loader), [], 0
    while True:
        try:
            seen.append(next(iterator)[1])
        except StopIteration:
            break
        except ValueError:
            failed += 1
    assert failed == 10 and sorted(seen) == [k for k in range(100) if k % 10 != 3]
    loader.close()
