"""What is counted is counted once, whoever looks meanwhile, and whatever a worker's code has overwritten."""

from __future__ import annotations

import pytest
import torch

import shmloader
from shmloader.core.figures import BATCHES, Figures
from shmloader.statistics.account import Account


class Raises(torch.utils.data.Dataset):
    """Every other batch of two raises."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index % 4 == 3:
            raise ValueError(f"sample {index}")
        return index


def test_two_looks_with_last_leave_nothing_out():
    class Growing:
        """Something is counted between any two looks."""

        def __init__(self):
            self.figures = Figures()

        def now(self):
            self.figures.add(BATCHES)
            return self.figures.copy()

    account = Account(0)
    account.meter = Growing()
    account.mark("last")
    before = account.meter.figures.amount(BATCHES)
    seen = sum(account.figures("last")[1].amount(BATCHES) for _ in range(5))
    assert seen == account.meter.figures.amount(BATCHES) - before


@pytest.mark.parametrize("workers", [0, 1])
def test_a_next_that_raised_gave_no_batch(workers):
    batches = iter(loader := shmloader.DataLoader(Raises(), batch_size=2, num_workers=workers))
    came = 0
    for _ in range(6):
        try:
            next(batches)
            came += 1
        except ValueError:
            pass
    stats = loader.stats()
    assert came == stats.batches == stats.wait.count == 3
    assert stats.step.count == 0  # what lies behind an error is no step of the loop's
    loader.close()
