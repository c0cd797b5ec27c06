"""What is counted is counted once, whoever looks meanwhile, and whatever a worker's code has overwritten."""

from __future__ import annotations

import pytest

import shmloader
from shmloader._figures import BATCHES, BYTES, Figures
from shmloader.statistics.account import Account, account_of


def test_a_worker_is_counted_once_while_its_ring_closes():
    loader = shmloader.DataLoader(list(range(8)), batch_size=2, num_workers=1)
    meter = account_of(loader).meter
    discard, seen = meter.turns.discard, []

    def looked_at(turns):
        seen.append(meter.now().of_worker(0)["published"])
        discard(turns)

    meter.turns.discard = looked_at
    assert len(list(loader)) == 4
    assert seen == [4]
    assert loader.stats().workers[0].published == 4


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


def test_a_figure_that_shrank_is_nothing_and_not_an_age():
    earlier, later = Figures(), Figures()
    earlier.add(BATCHES, 5)
    later.add(BATCHES, 3)
    later.add(BYTES, 3)
    later.less(earlier)
    assert (later.amount(BATCHES), later.amount(BYTES)) == (0, 3)


def test_since_what_cannot_be_hashed_is_named():
    with pytest.raises(ValueError, match=r"since=\['last'\]"):
        shmloader.DataLoader(range(4)).stats(since=["last"])
