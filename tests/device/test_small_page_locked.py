"""Small leaves of page-locked batches are page-locked too, by torch; NOTE [ Small leaves ] in recipe.pxi.

The device is a double.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import BOTH, assert_same
from gpu_double import installed
from page_locked import settled

import shmloader

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


class Labelled(torch.utils.data.Dataset):
    """An image of 24 KB and a label a sample."""

    def __len__(self) -> int:
        return 192

    def __getitem__(self, k: int) -> Any:
        return torch.full((6144,), float(k)), k


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


@pytest.mark.parametrize("lag", [0, 5])
def test_small_leaves_are_page_locked_and_copied_late(gpu: Any, lag: int) -> None:
    double = gpu(lag=lag)
    loader = shmloader.DataLoader(Labelled(), 8, num_workers=2, pin_memory=True)
    kept, copies = [], []
    iterator = iter(loader)
    for image, label in iterator:
        assert double.is_pinned(image) and double.is_pinned(label) and not label._is_view()
        copies.append((double.copy(image), double.copy(label)))
        if len(kept) % 2:
            kept.append(label)
        else:
            kept.append(label.clone())
        del image, label
        settled(iterator)
    double.synchronize()
    wanted = list(BOTH[0](Labelled(), 8))
    assert_same(kept, [label for _, label in wanted])
    assert_same(copies, [tuple(batch) for batch in wanted])
    assert loader.stats().copied_spare == 0


def test_page_locked_small_ones_of_every_kind(gpu: Any) -> None:
    gpu()
    makers = [torch.arange(5), torch.zeros(0, 3), torch.tensor(True), torch.ones(3, dtype=torch.bfloat16)]
    makers += [torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last), numpy.arange(4)]
    with torch.inference_mode():
        loader = shmloader.DataLoader([makers] * 6, None, num_workers=1, pin_memory=True, collate_fn=with_large)
        first = next(iter(loader))
    iterator = iter(loader)
    for _ in range(5):
        batch = next(iterator)
        settled(iterator)
        assert_same(batch, with_large(makers))
        assert [leaf.stride() for leaf in batch[1:-1]] == [leaf.stride() for leaf in makers[:-1]]
        for leaf in batch[1:]:
            leaf[...] = 0
        assert not any(leaf.any() for leaf in batch[1:])
    assert_same(first, with_large(makers))


def with_large(parts: list[Any]) -> list[Any]:
    return [torch.arange(1 << 20), *parts]


def test_what_goes_to_a_device_stays_in_the_slot(gpu: Any) -> None:
    double = gpu()
    with shmloader.DataLoader(Labelled(), 8, num_workers=2, device="cuda") as loader:
        assert_same([list(batch) for batch in loader], list(BOTH[0](Labelled(), 8)))
    gc.collect()
    assert not double._rooms
