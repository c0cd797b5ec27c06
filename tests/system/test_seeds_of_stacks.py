"""Seeds of samples where datasets are wrapped in torch's: no sample's draws depend on what it is fetched with."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import StackDataset, Subset

import shmloader
from shmloader.protocols.user_objects import is_got_one_by_one


class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.rand(1)


class AllAtOnce(Draws):
    def __getitems__(self, indices):
        return list(torch.rand(len(indices), 1))


class Doubled(StackDataset):
    def __getitem__(self, index):
        return super().__getitem__(index) * 2


def subset(dataset):
    return Subset(dataset, range(16))


@pytest.mark.parametrize(
    "dataset",
    [subset(StackDataset(Draws(), Draws())), StackDataset(x=subset(subset(Draws())), y=Draws())],
    ids=["subset-of-stack", "stack-of-subset-of-subset"],
)
def test_a_stacks_samples_are_the_same_however_they_are_cut(dataset):
    def samples(**options):
        torch.manual_seed(0)
        with shmloader.DataLoader(dataset, batch_size=8, sample_seeds=True, **options) as loader:
            found = [list(batch.values()) if isinstance(batch, dict) else batch for batch in loader]
            return torch.cat([torch.stack(list(batch)) for batch in found], 1)

    whole = samples()
    assert torch.equal(whole, samples(num_workers=2, schedule="steal", chunk_size=3))
    assert len(whole.unique()) == whole.numel()


@pytest.mark.parametrize(
    ("dataset", "one_by_one"),
    [
        (Draws(), True),
        (AllAtOnce(), False),
        (StackDataset(Draws(), subset(Draws())), True),
        (StackDataset(Draws(), AllAtOnce()), False),
        (subset(StackDataset(AllAtOnce())), False),
        (Doubled(Draws()), False),  # torch asks its __getitems__, which knows nothing of that
    ],
)
def test_what_makes_all_at_once_is_asked_at_once(dataset, one_by_one):
    assert is_got_one_by_one(dataset) is one_by_one
