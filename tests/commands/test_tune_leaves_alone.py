"""What tune does not touch, and what it says where there is nothing that it could pick."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import shmloader
from shmloader.commands.tuning.measure import Sample
from shmloader.commands.tuning.search import Search

DATASET = TensorDataset(torch.arange(64))


@pytest.mark.parametrize("given", ["the loader's sampler", "an option"])
def test_the_callers_generators_are_as_they_were(given):
    generator = torch.Generator().manual_seed(1)
    before, options = generator.get_state(), {"num_workers": 1, "seconds": 0.5, "progress": False}
    if given == "an option":
        shmloader.tune(DATASET, generator=generator, **options)
    else:
        shmloader.tune(DataLoader(DATASET, batch_size=4, shuffle=True, generator=generator), **options)
    assert torch.equal(generator.get_state(), before)


def test_seconds_without_an_end_are_refused():
    with pytest.raises(ValueError, match="seconds=inf"):
        shmloader.tune(DATASET, seconds=math.inf)


def search(measure, weigh, budget=100):
    times = iter(range(10**6))
    return Search(measure, weigh, budget, 60.0, 8, clock=lambda: next(times) * 0.01)


def test_a_budget_below_one_worker_is_an_error():
    with pytest.raises(MemoryError, match=r"need 1000 B\. memory_bytes allows 100 B"):
        search(lambda setting, seconds: Sample(1.0, 1.0, 10), lambda setting: 1000).run()


def test_where_only_fewer_batches_fit_these_are_picked():
    found = search(
        lambda setting, seconds: Sample(1.0, 1.0, 10),
        lambda setting: 60 * setting.num_workers * setting.prefetch_factor,
    ).run()
    assert (found.setting.num_workers, found.setting.prefetch_factor) == (1, 1)


def test_a_dataset_that_fails_later_is_named():
    measured = []

    def measure(setting, seconds):
        measured.append(setting)
        return Sample(1.0, 1.0, 10) if len(measured) == 1 else Sample(0.0, 0.0, 0, "sample 7 cannot be read")

    with pytest.raises(RuntimeError, match="failed while it was measured: sample 7 cannot be read"):
        search(measure, lambda setting: 1).run()
