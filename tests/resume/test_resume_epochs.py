"""The epoch travels with each task: no sample is made for another one than that which was set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import Augmented, iterate, label
from resuming import quiet
from torch.utils.data import ConcatDataset, IterableDataset, StackDataset, Subset

import shmloader
from shmloader.resume import dataset_epochs
from shmloader.system import user_line

pytestmark = quiet


class EpochDataset(Augmented):
    """Each sample is the epoch for which it was made.  The attribute is not called `epoch`."""

    def __init__(self, length: int = 24) -> None:
        super().__init__(length)
        self._at = -1

    def set_epoch(self, epoch: int) -> None:
        self._at = epoch

    def __getitem__(self, index: int) -> Any:
        return self._at


class Stream(IterableDataset[int]):
    def __init__(self) -> None:
        self._at = -1

    def set_epoch(self, epoch: int) -> None:
        self._at = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self._at] * 12)  # a later set_epoch() is too late


class Ordered(torch.utils.data.Sampler[Any]):
    """A sampler with a set_epoch(), whose indices show the epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter([(self.epoch, k) for k in range(24)])

    def __len__(self) -> int:
        return 24


class Both(EpochDataset):
    def __getitem__(self, index: Any) -> Any:
        return self._at, index[0]


def made_for_in(batches: list[Any]) -> set[int]:
    """The same, of a StackDataset too, whose batches are lists or dicts of one."""
    return made_for([batch if isinstance(batch, torch.Tensor) else next(iter(_values(batch))) for batch in batches])


def _values(batch: Any) -> Any:
    return batch.values() if isinstance(batch, dict) else batch


def made_for(batches: list[Any]) -> set[int]:
    return {int(epoch) for batch in batches for epoch in batch}


@pytest.mark.parametrize("kind", [EpochDataset, Stream])
@pytest.mark.parametrize("by", ["loader", "dataset"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"persistent_workers": True},
        {"persistent_workers": True, "prefetch_factor": 6},
        {"persistent_workers": True, "schedule": "steal"},
        {"persistent_workers": True, "chunk_size": 2},
        {"persistent_workers": True, "in_order": False},
        {"persistent_workers": True, "device": "cpu", "on_device": lambda batch: batch},
        pytest.param({"persistent_workers": True, "multiprocessing_context": "spawn"}, marks=pytest.mark.long),
    ],
    ids=label,
)
def test_no_sample_is_stale(kind: Any, by: str, options: dict[str, Any]) -> None:
    if kind is Stream and ("schedule" in options or "chunk_size" in options):
        pytest.skip("they are for map-style datasets")
    dataset = kind()
    with shmloader.DataLoader(dataset, 4, num_workers=2, **options) as loader:
        for epoch in (3, 4, 9, 2):
            (loader if by == "loader" else dataset).set_epoch(epoch)
            got: list[Any] = []
            for batch in loader:
                got.append(batch)
                if len(got) == 2:  # for the next one: those that are ready are of this one
                    (loader if by == "loader" else dataset).set_epoch(epoch + 100)
            assert made_for(got) == {epoch}
        assert made_for(iterate(loader)) == {102}


@pytest.mark.parametrize("by", ["loader", "dataset"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda counted: Subset(Subset(counted, range(24)), range(24)),
        lambda counted: ConcatDataset([counted, Subset(counted, range(8))]),
        lambda counted: StackDataset(counted),
        lambda counted: StackDataset(counted=counted),
    ],
    ids=["Subset", "ConcatDataset", "StackDataset", "StackDataset by name"],
)
def test_a_dataset_inside_torchs_wrapper_gets_the_epoch(wrap: Any, by: str) -> None:
    counted = EpochDataset()
    with shmloader.DataLoader(wrap(counted), 4, num_workers=1, persistent_workers=True) as loader:
        assert made_for_in(iterate(loader)) == {-1}
        for epoch in (3, 4):
            (loader if by == "loader" else counted).set_epoch(epoch)
            assert made_for_in(iterate(loader)) == {epoch}


@pytest.mark.parametrize("persistent", [False, True])
def test_the_sampler_the_batch_sampler_and_the_dataset_get_the_epoch(persistent: bool) -> None:
    sampler = Ordered()
    with shmloader.DataLoader(
        Both(), 4, sampler=sampler, num_workers=2, persistent_workers=persistent, collate_fn=list
    ) as loader:
        for epoch in (7, 1):
            loader.set_epoch(epoch)
            assert {sample for batch in loader for sample in batch} == {(epoch, epoch)}
            assert (sampler.epoch, loader.dataset._at) == (epoch, epoch)
        sampler.set_epoch(5)  # as Lightning does: the dataset's set_epoch() is not called
        assert {sample for batch in loader for sample in batch} == {(1, 5)}


def test_without_set_epoch_a_dataset_is_unchanged() -> None:
    with shmloader.DataLoader(EpochDataset(), 4, num_workers=2, persistent_workers=True) as loader:
        for _ in range(2):
            assert made_for(iterate(loader)) == {-1}
        loader.set_epoch(0)
        assert made_for(iterate(loader)) == {0}
    with shmloader.DataLoader(Augmented(), 4, num_workers=2) as loader:
        loader.set_epoch(4)
        assert len(iterate(loader)) == 6 and loader.state_dict()["epoch"] == 5


def test_a_dataset_is_listened_to_whatever_it_is_called_with() -> None:
    class Child(EpochDataset):
        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch * 2)

    child: Any = Child()
    for _ in range(2):
        dataset_epochs.listen(child)
    child.set_epoch(epoch=3)
    assert dataset_epochs.dataset_epoch(child) == 3 and child._at == 6
    for epoch in (1 << 63, 1.5):
        child.set_epoch(epoch)
        assert dataset_epochs.dataset_epoch(child) is None  # 3 would be a wrong one


# ---------------------------------------------------------------------------------------------------- with a state


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_has_the_epoch(workers: int) -> None:
    def made() -> Any:
        return shmloader.DataLoader(EpochDataset(), 4, num_workers=workers)

    with made() as first:
        first.set_epoch(8)
        next(iter(first))
        state = first.state_dict()
    with made() as second:
        second.load_state_dict(state)
        assert (second.state_dict()["epoch"], second.dataset._at) == (8, 8)
        got = iterate(second)
        assert made_for(got) == {8} and len(got) == 5
        assert second.state_dict()["epoch"] == 9


def test_another_epoch_than_the_loaded_one_comes_whole_with_a_warning() -> None:
    def made() -> Any:
        return shmloader.DataLoader(range(24), 4, sampler=shmloader.DistributedSampler(range(24), 2, 0))

    first = made()
    first.set_epoch(3)
    next(iter(first))
    state = first.state_dict()
    same = made()
    same.load_state_dict(state)
    assert same.sampler.epoch == 3
    same.set_epoch(3)
    assert len(list(same)) == 2
    for other in ("loader", "sampler"):
        loader = made()
        loader.load_state_dict(state)
        warns = pytest.warns(RuntimeWarning, match="starts at its beginning.*after 8 samples of epoch 3, is dropped")
        if other == "loader":
            with warns:
                loader.set_epoch(4)
            assert len(list(loader)) == 3
        else:
            loader.sampler.set_epoch(4)
            with warns:
                assert len(list(loader)) == 3


# -------------------------------------------------------------------------------------- samplers that it does not reach


class Under(torch.utils.data.Sampler[int]):
    """A sampler around another one."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


class PassesOn(Under):
    def set_epoch(self, epoch: int) -> None:
        self.base.set_epoch(epoch)


def unreached(sampler: Any, *numbers: int, later: Any = None, **options: Any) -> list[str]:
    """The warnings of set_epoch() with these numbers, each before an epoch; `later` is called after each."""
    user_line._met.clear()
    loader: Any = shmloader.DataLoader(range(24), 4, sampler=sampler, **options)
    with warnings.catch_warnings(record=True) as came:
        warnings.simplefilter("always")
        for number in numbers:
            loader.set_epoch(number)
            if later is not None:
                later(number)
            list(loader)
    assert all(one.filename == __file__ for one in came)
    return [str(one.message) for one in came]


def test_a_sampler_under_another_name_is_warned_of_once() -> None:
    said = "set_epoch(1) does not reach the DistributedSampler in Under."
    for attributes in (
        lambda sampler: {"base": sampler},
        lambda sampler: {"samplers": [torch.utils.data.SequentialSampler(range(3)), sampler]},
        lambda sampler: {"base": Under(sampler=sampler)},
    ):
        sampler = torch.utils.data.DistributedSampler(range(24), 2, 0)
        (name,) = attributes(sampler)
        (text,) = unreached(Under(**attributes(sampler)), 0, 1, 2)
        assert text.startswith(f"{said}{name}. ") and sampler.epoch == 0


def test_a_sampler_that_gets_the_number_or_needs_none_is_no_warning() -> None:
    made = torch.utils.data.DistributedSampler
    assert unreached(Under(sampler=(reached := made(range(24), 2, 0))), 1, 2) == [] and reached.epoch == 2
    assert unreached(PassesOn(base=(passed := made(range(24), 2, 0))), 1, 2) == [] and passed.epoch == 2
    called = made(range(24), 2, 0)
    assert unreached(Under(base=called), 1, 2, later=called.set_epoch) == []
    coming = made(range(24), 2, 0)
    coming.set_epoch(1)
    assert unreached(Under(base=coming), 1, 2, later=lambda number: coming.set_epoch(number + 1)) == []
    assert unreached(Under(base=made(range(24), 2, 0, shuffle=False)), 1, 2) == []
    assert unreached(Under(data_source=made(range(24), 2, 0)), 1, 2) == []
    assert unreached(Under(data_source=EpochDataset()), 1, 2) == []
    assert unreached(torch.utils.data.RandomSampler(EpochDataset(24)), 1, 2) == []
