"""What a signal's handler gets if it calls next() or close() while iter() runs: an error that names the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import shmloader
from shmloader.resume.place import Place
from shmloader.trainer.conductor import Conductor

BATCHES = [[0, 1], [2, 3], [4, 5]]


@pytest.fixture
def loader() -> Iterator[Any]:
    with shmloader.DataLoader(torch.arange(6), batch_size=2, num_workers=1, persistent_workers=True) as made:
        assert made.rides_ring
        yield made


def handled(monkeypatch: pytest.MonkeyPatch, handler: Callable[[], None], after: bool) -> None:
    """Have a handler run once in the next iter(), before the epoch begins or after."""
    real = Conductor.begin

    def begin(self: Conductor, *given: Any) -> None:
        monkeypatch.setattr(Conductor, "begin", real)
        if not after:
            handler()
        real(self, *given)
        if after:
            handler()

    monkeypatch.setattr(Conductor, "begin", begin)


@pytest.mark.parametrize("after", [False, True])
def test_next_in_iter_is_an_error_and_the_epoch_is_whole(
    loader: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    iterator = iter(loader)
    next(iterator)
    refused: list[str] = []

    def handler() -> None:
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        refused.append(str(caught.value))

    handled(monkeypatch, handler, after)
    assert [batch.tolist() for batch in loader] == BATCHES
    assert len(refused) == 1 and "next() or iter() was called" in refused[0]
    assert [batch.tolist() for batch in loader] == BATCHES


@pytest.mark.parametrize("after", [False, True])
def test_iter_in_iter_is_an_error_and_the_epoch_is_whole(
    loader: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    next(iter(loader))
    refused: list[str] = []

    def handler() -> None:
        with pytest.raises(RuntimeError) as caught:
            iter(loader)
        refused.append(str(caught.value))

    handled(monkeypatch, handler, after)
    assert [batch.tolist() for batch in loader] == BATCHES
    assert len(refused) == 1 and "next() or iter() was called" in refused[0]


@pytest.mark.parametrize("after", [False, True])
def test_close_in_iter_is_a_runtime_error(loader: Any, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    next(iter(loader))
    handled(monkeypatch, loader.close, after)
    with pytest.raises(RuntimeError, match=r"^The loader was closed while iter\(\) ran"):
        iter(loader)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}, {"num_workers": 1, "device": "cpu"}],
    ids=["no workers", "workers", "workers that persist", "a prefetch thread"],
)
@pytest.mark.parametrize("begun", [False, True], ids=["first", "second"])
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


def test_iter_that_is_broken_off_keeps_the_place_that_its_handler_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    with shmloader.DataLoader(torch.arange(6), batch_size=2) as loader:
        batches = iter(loader)
        states = [loader.state_dict() for _ in range(2) if next(batches) is not None]

        def begin(self: Place, *given: Any) -> None:
            monkeypatch.undo()
            loader.load_state_dict(states[1])
            raise KeyboardInterrupt

        loader.load_state_dict(states[0])
        monkeypatch.setattr(Place, "begin", begin)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
        assert loader.state_dict() == states[1]
        assert [batch.tolist() for batch in loader] == BATCHES[2:]
