"""Ctrl-C at random moments of a `for` loop: each batch comes once, in order, and every epoch is whole.

As a script it takes the number of interrupts, and prints how many there were: the contract in docs/limits.md.
"""

from __future__ import annotations

import itertools
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import shmloader

SAMPLES = 8192
BATCHES = SAMPLES // 2


@contextmanager
def timer() -> Iterator[None]:
    """SIGALRM raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def plain(batches: Any) -> Any:
    return batches


def counted(batches: Any) -> Any:
    return enumerate(batches)


def zipped(batches: Any) -> Any:
    """The batch is taken last, because zip() drops what it has taken when it is interrupted."""
    return zip(itertools.repeat(0), batches, strict=False)


def epoch(loader: Any, around: Callable[[Any], Any] = plain, chance: random.Random | None = None) -> tuple[Any, int]:
    """The first sample of each batch of an epoch, and how often the loop was interrupted.

    Args:
        loader: The loader.
        around: What the loop iterates over.
        chance: Draws the moments of the interrupts; None: there are none.
    """
    torch.manual_seed(3)
    came: list[Any] = []
    item, over, interrupts = None, False, 0
    batches = around(iter(loader))
    while not over:
        try:
            if chance is not None:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-4))
            for item in batches:
                came.append(item)
            signal.setitimer(signal.ITIMER_REAL, 0)
            over = True
        except KeyboardInterrupt:
            interrupts += 1
            if item is not None and (not came or came[-1] is not item):  # between the loop's variable and its body
                came.append(item)
            if not interrupts % 16:
                assert loader.state_dict()["batches"] % BATCHES == len(came) % BATCHES
    numbered = [item if isinstance(item, tuple) else (None, item) for item in came]
    return [(number, first(batch)) for number, batch in numbered], interrupts


def noted(samples: list[Any]) -> Any:
    """A batch that is more than a tensor."""
    return {"samples": torch.stack(samples), "name": f"of {int(samples[0])}"}


def first(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return int(batch[0])
    assert batch["name"] == f"of {batch['samples'][0]}"
    return int(batch["samples"][0])


def by_place(index: int) -> int:
    return index // 64


OPTIONS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": True, "persistent_workers": True, "schedule": "steal"},
    {"sampler": torch.utils.data.WeightedRandomSampler(torch.ones(SAMPLES), SAMPLES), "chunk_size": 2},
    {"collate_fn": noted, "spare_slots": 0},
    {"schedule": "steal", "group_by": by_place},
]


def interrupted(options: dict[str, Any], around: Callable[[Any], Any], least: int, seed: int = 1) -> int:
    """Check whole epochs until there were so many interrupts; returns how many there were."""
    chance, interrupts = random.Random(seed), 0
    with timer(), shmloader.DataLoader(torch.arange(SAMPLES), 2, num_workers=2, **options) as loader:
        assert loader.rides_ring
        epoch(loader)  # the first epoch of persistent workers draws a seed more than the others
        expected, _ = epoch(loader, around)
        assert len(expected) == BATCHES
        while interrupts < least:
            got, count = epoch(loader, around, chance)
            assert got == expected
            assert count
            interrupts += count
    return interrupts


PAIRS = [(options, (plain, counted, zipped)[k % 3]) for k, options in enumerate([*OPTIONS, OPTIONS[0]])]


@pytest.mark.parametrize(
    ("options", "around"), PAIRS, ids=lambda value: value.__name__ if callable(value) else "-".join(value)
)
def test_no_loop_loses_or_repeats_a_batch(options: dict[str, Any], around: Callable[[Any], Any]) -> None:
    interrupted(options, around, 100)


if __name__ == "__main__":
    each = int(sys.argv[1]) // (len(OPTIONS) * 3)
    total = sum(interrupted(options, around, each) for options in OPTIONS for around in (plain, counted, zipped))
    print(f"Python {sys.version.split()[0]}: {total} interrupts, each batch came once, in order")
