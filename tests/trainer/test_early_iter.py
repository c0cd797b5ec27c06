"""`batches = iter(loader)` early: workers start and fill the ring, and the loop over `batches` comes when it comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from at_line import AtLine
from conftest import BOTH, Augmented, assert_same, children, label, rng_states, seed_all
from test_one_step import Numbers, numbers_in
from torch.utils.data import DistributedSampler, IterableDataset

import shmloader
from shmloader.resume import place
from shmloader.trainer import iterator

BATCHES = 6

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((k, torch.rand(2)) for k in range(11))


OPTIONS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": True, "persistent_workers": True},
    {"dataset": Stream()},
    {"dataset": Stream(), "persistent_workers": True},
]


def made(kind: Any, **options: Any) -> Any:
    return kind(options.pop("dataset", None) or Augmented(22), 4, num_workers=2, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=label)
def test_its_batches_are_torchs(options: dict[str, Any]) -> None:
    """The next epoch's iterator is made before another loader is read, as before a validation."""
    given = []
    for kind in BOTH:
        seed_all()
        training, validation = made(kind, **options), made(kind)
        epochs = []
        batches = iter(training)
        for _ in range(3):
            epochs.append(list(batches))
            batches = iter(training)
            epochs.append(list(validation))
        given.append((epochs, list(batches), rng_states()))
        del batches, training, validation
    assert_same(given[1], given[0])


@pytest.mark.parametrize("options", OPTIONS, ids=label)
def test_workers_make_its_first_batches_before_they_are_asked_for(options: dict[str, Any]) -> None:
    before = children()
    with made(shmloader.DataLoader, **options) as loader:
        batches = iter(loader)
        ring = batches._ring
        assert len(children() - before) == 2 and ring.under_way == 4
        while not ring.ready():
            ring.wait()
        del batches, ring


def test_ctrl_c_at_any_line_of_iter() -> None:
    """The epoch that the user wants comes, whether an earlier iter() had begun it or not."""

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    def loader(sampler: Any, **options: Any) -> Any:
        return shmloader.DataLoader(Numbers(), 4, sampler=sampler, **options)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    files = (place.__file__, iterator.__file__)
    try:
        sampler = DistributedSampler(range(22), 2, 0)
        with loader(sampler, num_workers=2, persistent_workers=True) as lasting:
            for epoch in range(99):
                lasting.set_epoch(epoch)
                expected = [numbers_in(batch) for batch in loader(sampler)]
                at = 1 + 5 * epoch  # each fifth line
                with AtLine(at, press, files) as line:
                    try:
                        batches = iter(lasting)
                    except KeyboardInterrupt:
                        batches = None
                if batches is None:
                    batches = iter(lasting)
                assert lasting.state_dict()["sampler_epoch"] == epoch
                assert [numbers_in(batch) for batch in batches] == expected
                if line.lines < at:
                    break
            else:
                pytest.fail("more lines than that")
    finally:
        signal.signal(signal.SIGINT, before)
    assert epoch > 5
