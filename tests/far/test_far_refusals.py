"""What a loader with far workers is made with, and what is refused."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import warnings
from typing import Any

import pytest
import torch
from engine import Here
from torch.utils.data import IterableDataset

import shmloader
from shmloader.worker_count import WorkerCount


def test_torch_does_not_compare_far_workers_with_the_cores_here() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = shmloader.DataLoader(range(8), far_workers=Here(1000))
        assert pickle.loads(pickle.dumps(loader.check_worker_number_rationality))() is None
        loader.check_worker_number_rationality()
    with pytest.warns(UserWarning, match="will create 1000 worker processes"):
        shmloader.DataLoader(range(8), num_workers=1000)


def test_the_count_survives_who_rebuilds_a_loader() -> None:
    far = Here(3)
    loader = shmloader.DataLoader(range(8), num_workers=2, far_workers=far)
    assert loader.num_workers == 5 and loader.rides_ring
    for count in (
        loader.num_workers,
        pickle.loads(pickle.dumps(loader.num_workers)),
        copy.deepcopy(loader.num_workers),
    ):
        again: Any = shmloader.DataLoader(range(8), num_workers=count, far_workers=far)
        assert again.num_workers == 5 and isinstance(again.num_workers, WorkerCount) and again.num_workers.local == 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chunk_size": 2}, "far_workers and chunk_size cannot go together"),
        ({"group_by": int}, "far_workers and group_by cannot go together"),
        ({"look_ahead": 1}, "far_workers and look_ahead cannot go together"),
        ({"in_order": False}, "far_workers and in_order=False cannot go together"),
        ({"multiprocessing_context": "fork"}, "multiprocessing_context='fork'"),
        ({"dataset": Stream()}, "far_workers needs a map-style dataset, but got Stream"),
        ({"far_workers": 4}, "far_workers should be a shmloader.ray.Workers or None, but got far_workers=4"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_far_workers_cannot_do_is_refused(options: dict[str, Any], text: str) -> None:
    asked: dict[str, Any] = {"dataset": range(8), "batch_size": 4, "num_workers": 1, "far_workers": Here(1), **options}
    with pytest.raises(ValueError) as error:
        shmloader.DataLoader(**asked)
    assert text in str(error.value)


def test_they_cannot_be_set_later() -> None:
    loader = shmloader.DataLoader(range(8), num_workers=1)
    with pytest.raises(ValueError, match="Make another loader"):
        loader.far_workers = Here(1)
    loader = shmloader.DataLoader(range(8), far_workers=Here(1))
    loader.num_workers = 3
    with pytest.raises(ValueError, match="Give it when the loader is made"):
        iter(loader)


def test_a_fork_context_that_is_an_object_is_refused() -> None:
    fork = multiprocessing.get_context("fork")
    with pytest.raises(ValueError, match="multiprocessing_context='fork', because Ray runs threads"):
        shmloader.DataLoader(range(8), far_workers=Here(1), multiprocessing_context=fork)


def test_a_loader_of_a_framework_that_cannot_have_them_goes_without() -> None:
    with shmloader.patch_torch(far_workers=Here(1)), pytest.warns(RuntimeWarning, match="was not given far_workers="):
        loader: Any = torch.utils.data.DataLoader(Stream(), batch_size=2)
    assert loader.far_workers is None and len(list(loader)) == 2


def test_a_loader_with_them_is_not_tuned() -> None:
    with pytest.raises(ValueError, match="does not measure far ones"):
        shmloader.tune(range(8), far_workers=Here(1))
