"""An epoch without a batch because drop_last=True dropped all samples is a warning, once for each loader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, get_worker_info

import shmloader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Parts(IterableDataset[int]):
    """Worker k gives so many samples."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(sum(self.lengths) if info is None else self.lengths[info.id]))


def epochs(loader: Any, count: int = 2) -> tuple[list[int], list[str]]:
    """How many batches each epoch had, and the warnings of drop_last, with the file that they name."""
    with warnings.catch_warnings(record=True) as came, loader:
        warnings.simplefilter("always")
        lengths = [len(list(loader)) for _ in range(count)]
    found = [one for one in came if "had no batch" in str(one.message)]
    assert all(one.filename == __file__ for one in found)
    return lengths, [str(one.message) for one in found]


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"in_order": False}])
def test_each_worker_drops_its_only_batch(options: dict[str, Any]) -> None:
    lengths, came = epochs(shmloader.DataLoader(Parts(3, 3), 4, num_workers=2, drop_last=True, **options))
    assert lengths == [0, 0]
    (text,) = came
    assert text.startswith(
        "the epoch had no batch, because drop_last=True drops what does not fill one. Each of the 2 workers"
    )
    assert "their parts of the stream Parts has batch_size=4 samples" in text


@pytest.mark.parametrize("workers", [0, 1])
def test_one_stream_is_smaller_than_a_batch(workers: int) -> None:
    lengths, came = epochs(shmloader.DataLoader(Parts(3), 4, num_workers=workers, drop_last=True))
    assert (lengths, len(came)) == ([0, 0], 1) and "The stream Parts has fewer than batch_size=4" in came[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_smaller_than_a_batch(workers: int) -> None:
    for options in (
        {"batch_size": 4, "drop_last": True, "shuffle": True},
        {"batch_sampler": BatchSampler(range(3), 4, drop_last=True)},
    ):
        lengths, came = epochs(shmloader.DataLoader(range(3), num_workers=workers, **options))
        assert (lengths, len(came)) == ([0, 0], 1) and "gives 3 of them, and a batch has 4" in came[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_other_empty_epochs_and_parts_are_no_warning(workers: int) -> None:
    for dataset, options in (
        (Parts(5, 3), {"drop_last": True}),  # one worker drops all it has
        (Parts(0, 0), {}),
        (Parts(1, 1), {}),
        ([], {"drop_last": True}),
        (range(9), {"drop_last": True}),
        (range(3), {"drop_last": True, "sampler": torch.utils.data.SubsetRandomSampler([])}),
        (range(3), {"batch_sampler": []}),
    ):
        if "batch_sampler" not in options:
            options["batch_size"] = 4
        assert epochs(shmloader.DataLoader(dataset, num_workers=workers, **options))[1] == []


@pytest.mark.parametrize("workers", [0, 2])
def test_next_may_be_called_after_the_end_of_an_empty_epoch(workers: int) -> None:
    for dataset in ([], Parts(0, 0)):
        with shmloader.DataLoader(dataset, 4, num_workers=workers) as loader:
            batches = iter(loader)
            assert [list(batches) for _ in range(3)] == [[], [], []]


@pytest.mark.filterwarnings("ignore:the dataset Parts has no state_dict")
@pytest.mark.parametrize("workers", [0, 1])
def test_the_empty_rest_of_an_epoch_is_no_warning(workers: int) -> None:
    for dataset in (range(9), Parts(9)):
        with shmloader.DataLoader(dataset, 4, num_workers=workers, drop_last=True) as first:
            for _ in first:
                state = first.state_dict()
        second = shmloader.DataLoader(dataset, 4, num_workers=workers, drop_last=True)
        second.load_state_dict(state)
        assert epochs(second) == ([0, 2], [])
