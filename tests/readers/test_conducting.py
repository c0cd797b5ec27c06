"""A loader that no other process reads costs what it did: nothing on a batch's way knows of readers."""

from __future__ import annotations

import torch

import shmloader
from shmloader.core.next_batch import Steps
from shmloader.trainer.delivery import Delivery
from shmloader.trainer.iterator import RingIterator


def test_a_loader_without_readers_steps_as_ever() -> None:
    iterator = iter(shmloader.DataLoader(torch.arange(8), num_workers=1, multiprocessing_context="fork"))
    assert type(iterator) is RingIterator and iterator._audience is None
    assert type(iterator._steps) is Steps and type(iterator._delivery) is Delivery
    assert iterator._ring.readers is None
    assert sorted(int(k) for k in iterator) == list(range(8))
