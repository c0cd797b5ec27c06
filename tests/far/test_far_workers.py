"""Far workers make the batches that local ones would make: NOTE [ Far workers ] in far/stand_in.py."""

from __future__ import annotations

import copy
import os
import pathlib
from typing import Any

import pytest
import torch
from compared import DRAWN, batches
from conftest import assert_same, iterate, seed_all
from drawn import Drawn
from engine import Here
from torch.utils.data import Dataset

import shmloader


class Witness(Drawn):
    """Leaves a file for each process that unpickles it, and counts how often this process pickles it."""

    pickled = 0

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__()
        self.folder = folder

    def __getstate__(self) -> dict[str, Any]:
        Witness.pickled += 1
        return vars(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        (self.folder / str(os.getpid())).touch()


@pytest.mark.parametrize("local", [0, 1])
def test_a_stand_in_is_not_sent_the_dataset(local: int, tmp_path: pathlib.Path) -> None:
    """It is pickled once for the far workers, and once more if there are local ones."""
    far, before = Here(2), Witness.pickled
    with shmloader.DataLoader(Witness(tmp_path), batch_size=4, num_workers=local, far_workers=far) as loader:
        iterator = iter(loader)
        assert far.session is not None
        makers = {worker.pid for worker in iterator._workers[:local]} | {each.pid for each in far.session.processes}
        list(iterator)
    assert {int(each.name) for each in tmp_path.iterdir()} == makers
    assert Witness.pickled - before == 1 + local


SPLITS = pytest.mark.parametrize(("local", "far"), [(1, 2), pytest.param(0, 3, marks=pytest.mark.long)])


@SPLITS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "steal"},
        {"sample_seeds": True},
        {"on_worker_death": "respawn"},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.long),
    ],
    ids=["round robin", "steal", "sample seeds", "respawn", "spawned"],
)
def test_batches_are_those_of_local_workers(local: int, far: int, options: dict[str, Any]) -> None:
    same_worker = "schedule" not in options  # with stealing, a sample cannot know who makes it
    by_local_ones, by_far_workers = batches(3, 0, **options), batches(local, far, **options)
    if not same_worker:
        for each in (*by_local_ones, *by_far_workers):
            del each["worker"]
    assert_same(by_far_workers, by_local_ones)


@pytest.mark.parametrize("options", [{}, {"on_worker_death": "respawn"}], ids=str)
def test_epochs_follow_each_other_with_workers_that_persist(options: dict[str, Any]) -> None:
    options = {"persistent_workers": True, **options}
    assert_same(batches(1, 1, epochs=3, **options), batches(2, 0, epochs=3, **options))


class Bad(Drawn):
    """Some samples raise."""

    def __getitem__(self, index: int) -> Any:
        if index % 7 == 3:
            raise ValueError(f"sample {index} is bad")
        return super().__getitem__(index)


def test_an_exception_comes_in_place_of_the_batch() -> None:
    there, here = batches(1, 1, dataset=Bad()), batches(2, 0, dataset=Bad())
    assert_same(there, here)
    assert any(getattr(each, "kind", None) is ValueError for each in there)


@pytest.mark.filterwarnings("ignore:.*bad")
def test_bad_samples_are_replaced_by_the_same_ones() -> None:
    options = {"on_bad_sample": "skip:1.0"}
    assert_same(batches(1, 1, dataset=Bad(), **options), batches(2, 0, dataset=Bad(), **options))


class Unloadable(Drawn):
    """Cannot be unpickled."""

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("it does not unpickle")


def test_a_dataset_that_cannot_be_unpickled_there_is_an_error_in_place_of_each_batch() -> None:
    errors = batches(0, 1, dataset=Unloadable())
    assert {each.kind for each in errors} == {RuntimeError}
    assert all("it does not unpickle" in each.text for each in errors)


class Growing(Dataset[Any]):
    """Each sample is larger than the one before, so slots grow."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << (10 + index),), index)


def test_slots_grow() -> None:
    with shmloader.DataLoader(Growing(), batch_size=1, far_workers=Here(1)) as loader:
        for k, batch in enumerate(loader):
            assert torch.equal(batch, torch.full((1, 1 << (10 + k)), k))


def test_a_batch_for_which_there_is_no_memory_is_the_error_of_local_workers() -> None:
    options: dict[str, Any] = {"batch_size": 1, "max_ring_bytes": 1 << 20}
    with shmloader.DataLoader(Growing(), num_workers=1, **options) as loader:
        by_local_ones = iterate(loader)
    with shmloader.DataLoader(Growing(), far_workers=Here(1), **options) as loader:
        by_far_workers = iterate(loader)
    assert [type(each) for each in by_far_workers] == [type(each) for each in by_local_ones]
    refused = [each for each in by_far_workers if not isinstance(each, torch.Tensor)]
    assert refused and all(each.kind is MemoryError for each in refused)
    assert_same([each for each in by_far_workers if isinstance(each, torch.Tensor)],
                [each for each in by_local_ones if isinstance(each, torch.Tensor)])  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"schedule": "steal"}, pytest.param({}, marks=pytest.mark.long)], ids=["steal", "round robin"]
)
def test_it_resumes_in_mid_epoch(options: dict[str, Any]) -> None:
    seed_all()
    make = {"batch_size": 4, "shuffle": True, **options}
    with shmloader.DataLoader(DRAWN, num_workers=1, far_workers=Here(1), **make) as loader:
        iterator = iter(loader)
        first = [copy.deepcopy(next(iterator)) for _ in range(3)]
        state = loader.state_dict()
        rest = [copy.deepcopy(batch) for batch in iterator]
    seed_all(8)
    with shmloader.DataLoader(DRAWN, num_workers=1, far_workers=Here(2), **make) as loader:
        loader.load_state_dict(state)
        again = [copy.deepcopy(batch) for batch in loader]
    assert len(first) == 3
    keys = ["picture", "target", "drawn", "name"] if options else ["name"]
    assert_same(
        [{key: each[key] for key in keys} for each in again], [{key: each[key] for key in keys} for each in rest]
    )
