"""A signal's handler raises behind the step, before next() has returned its batch: the batch comes again."""

from __future__ import annotations

import gc
import random
import signal
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import shmloader
from shmloader import _torch

BATCHES = 6


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(2 * BATCHES))

    def __len__(self) -> int:
        return 2 * BATCHES


@pytest.fixture
def loader() -> Iterator[Any]:
    with shmloader.DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True) as made:
        assert made.rides_ring
        yield made


def interrupted(monkeypatch: pytest.MonkeyPatch, iterator: Any) -> None:
    """Have the next call raise behind the step."""
    real = _torch.warn_of_length

    def raising(_: Any) -> None:
        monkeypatch.setattr(_torch, "warn_of_length", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(_torch, "warn_of_length", raising)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)


def test_it_comes_with_the_next_call_and_counts_once(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(loader)
    got = [next(iterator).tolist()]
    interrupted(monkeypatch, iterator)
    assert loader.state_dict()["batches"] == 2
    got.append(next(iterator).tolist())
    assert loader.state_dict()["batches"] == 2
    got += [batch.tolist() for batch in iterator]
    assert got == [[2 * k, 2 * k + 1] for k in range(BATCHES)]


def test_a_new_epoch_begins_with_its_own_first_batch(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    iterator = iter(loader)
    next(iterator)
    interrupted(monkeypatch, iterator)
    assert [batch.tolist()[0] for batch in loader] == list(range(0, 2 * BATCHES, 2))


def test_a_batch_that_was_returned_is_held_by_nobody_else(loader: Any) -> None:
    batch = next(iter(loader))
    gone = weakref.ref(batch)
    del batch
    gc.collect()
    assert gone() is None


@pytest.mark.long
@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "prefetch_epochs": True}], ids=str)
def test_no_batch_is_lost_or_repeated_if_a_timer_raises_at_random(options: dict[str, Any]) -> None:
    inside = False

    def handler(number: int, frame: FrameType | None) -> None:
        # Behind the call of next() in the loop, what it returned is the loop's, and so is the loss.
        if inside and frame is not None and frame.f_code.co_filename != __file__:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    chance, raised, spared = random.Random(1), 0, False
    with shmloader.DataLoader(torch.arange(8192), batch_size=2, persistent_workers=True, **options) as loader:
        try:
            for _ in range(4):
                got: list[int] = []
                iterator = iter(loader)
                while True:
                    if not spared:  # a call that was broken off is followed by one that is not
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-4))
                    try:
                        inside, spared = True, False
                        batch = next(iterator)
                        inside = False
                    except KeyboardInterrupt:
                        inside, spared = False, True
                        raised += 1
                        continue
                    except StopIteration:
                        inside = False
                        break
                    got.append(int(batch[0]))
                assert got == list(range(0, 8192, 2))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert raised
