"""iter(): called early, it has workers fill the ring; broken off, it leaves the place that was loaded."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from at_line import AtLine
from conftest import BOTH, Augmented, assert_same, children, descriptors, label, rng_states, seed_all
from test_one_step import Numbers, numbers_in
from torch.utils.data import DistributedSampler, IterableDataset

import shmloader
from shmloader.resume import place
from shmloader.resume.place import Place
from shmloader.trainer import iterator

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((k, torch.rand(2)) for k in range(11))


OPTIONS: list[dict[str, Any]] = [
    {"shuffle": True, "persistent_workers": True},
    {"dataset": Stream()},
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


BATCHES = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        ({}, False),
        ({}, True),
        ({"num_workers": 1}, False),
        ({"num_workers": 1, "persistent_workers": True}, True),
        ({"num_workers": 1, "device": "cpu"}, True),
    ],
)
def test_iter_that_is_broken_off_keeps_the_place_that_was_loaded(
    options: dict[str, Any], begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shmloader.DataLoader(torch.arange(6), batch_size=2, **options) as made:
        first = iter(made)
        next(first)
        state = made.state_dict()
    real = Place.begin

    def begin(self: Place, *given: Any) -> None:
        monkeypatch.setattr(Place, "begin", real)
        real(self, *given)
        raise KeyboardInterrupt

    with shmloader.DataLoader(torch.arange(6), batch_size=2, **options) as made:
        if begun:
            assert [batch.tolist() for batch in made] == BATCHES
        made.load_state_dict(state)
        monkeypatch.setattr(Place, "begin", begin)
        with pytest.raises(KeyboardInterrupt):
            iter(made)
        assert made.state_dict() == state
        assert [batch.tolist() for batch in made] == BATCHES[1:]
        assert [batch.tolist() for batch in made] == BATCHES


@pytest.mark.parametrize("part", ["TrainerSide", "workers_of", "Steps"])
def test_an_iterator_that_cannot_be_made_leaves_nothing_behind(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise MemoryError("for the test")

    loader = shmloader.DataLoader(range(4), num_workers=1)
    before = descriptors()
    with monkeypatch.context() as broken, pytest.raises(MemoryError, match="for the test") as raised:
        broken.setattr(iterator, part, fails)
        iter(loader)
    assert descriptors() == before and raised.value.__traceback__, "which keeps the iterator: nothing collects it"
    del raised
    assert torch.cat(list(loader)).tolist() == [0, 1, 2, 3]
