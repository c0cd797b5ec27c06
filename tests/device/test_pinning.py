"""Page-locked slots, from the first to the last: NOTE [ Pinning ].  The device is a double."""

from __future__ import annotations

import gc
import os
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from conftest import ASKS_CUDA_ALONE, assert_same
from gpu_double import installed
from page_locked import Numbered, pinned, settled, wait_for

import shmloader
from shmloader.device import pinning
from shmloader.device.prefetch import Prefetcher
from shmloader.trainer.iterator import RingIterator

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


# --------------------------------------------------------------------------------------------------------- the ledger


def test_batches_are_page_locked_and_soon_not_copied(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(120, 20_000)))
    for k in range(120):
        batch = next(iterator)
        assert double.is_pinned(batch) and torch.equal(batch, torch.full((20_000,), k))
        if k < 40:  # so that how many come before a slot is locked does not depend on when the thread gets its turn
            settled(iterator)
            copied = double.clones
    assert 0 < copied <= len(iterator._pinning._asked) and double.clones == copied
    assert "shmloader_pin" in double.threads


@pytest.mark.parametrize("growth", [7, pytest.param(700, marks=pytest.mark.long)])
def test_slots_that_grow_are_locked_again_as_a_whole(gpu: Any, growth: int) -> None:
    double = gpu(lag=3)
    iterator = iter(pinned(Numbered(200, 2000, growth)))
    found = []
    for k, batch in enumerate(iterator):
        assert double.is_pinned(batch), k
        found.append(double.copy(batch))
        if k % 20 == 0:
            settled(iterator)
    double.synchronize()
    for k, copied in enumerate(found):
        assert torch.equal(copied, torch.full((2000 + k * growth,), k))
    assert len(double.sizes) > len(set(double.sizes)) or growth == 700


class Sizes(Numbered):
    """Small items, then larger ones, then small ones again."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((40_000 if 60 <= index < 100 else 20_000,), index)


def test_a_slot_that_must_be_locked_again_is_not_lent(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Sizes(140)))
    for _ in range(50):
        next(iterator)
    settled(iterator)
    requests, iterator._pinning._requests = iterator._pinning._requests, queue.SimpleQueue()  # nobody comes to them
    for _ in range(50, 100):
        next(iterator)
    clones = double.clones
    for _ in range(100, 130):
        next(iterator)
    assert double.clones == clones + 30, "the thread may be about to unregister what such a slot has"
    iterator._pinning._requests = requests
    iterator.close()


def test_what_is_too_large_is_copied(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    double = gpu()
    monkeypatch.setattr(pinning, "LARGEST", 100_000)
    with pytest.warns(UserWarning, match=r"could not be page-locked .*too large"):
        batches = [batch for batch in pinned(Numbered(60, 20_000)) if not time.sleep(0.001)]
    assert all(map(double.is_pinned, batches))
    assert double.clones == 60 and max(double.sizes) <= 100_000


class Custom:
    """A batch that page-locks itself."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.was_pinned = data, False

    def pin_memory(self) -> Custom:
        self.was_pinned = True
        return self


def customs(batch: list[Any]) -> Any:
    return {"custom": Custom(torch.stack(batch)), "names": ["a"], "array": numpy.ones(3)}


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.filterwarnings("ignore:the ring could not be page-locked")
def test_custom_types_page_lock_themselves(gpu: Any, refused: bool) -> None:
    double = gpu(refuses=lambda size: "no" if refused else "")
    seen = list(pinned(Numbered(20), batch_size=2, collate_fn=customs))
    for k, batch in enumerate(seen):
        assert batch["custom"].was_pinned and double.is_pinned(batch["custom"].data)
        assert_same(batch["custom"].data[:, 0], torch.tensor([2 * k, 2 * k + 1]))
        assert batch["names"] == ["a"] and type(batch["array"]) is numpy.ndarray


# ----------------------------------------------------------------------------------------------------------- refusals


def test_a_refusal_is_warned_of_once_and_batches_are_copied_early(gpu: Any) -> None:
    double = gpu(refuses=lambda size: "CUDA_ERROR_NOT_SUPPORTED")
    loader = pinned(Numbered(30))
    with pytest.warns(UserWarning, match="could not be page-locked .CUDA_ERROR_NOT_SUPPORTED.*"):
        iterator = iter(loader)
    assert isinstance(iterator, Prefetcher) and iterator._pin_memory_thread.is_alive()
    for k, batch in enumerate(iterator):
        assert hasattr(batch, "cloned") and torch.equal(batch, torch.full((500,), k))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no")
        assert len(list(loader)) == 30
    assert double.clones == 60 and not double.registered


def test_an_error_is_a_refusal(gpu: Any) -> None:
    def refuses(size: int) -> str:
        raise RuntimeError("CUDA error: initialization error\nCompile with ...")

    gpu(refuses=refuses)
    with pytest.warns(UserWarning, match=r"page-locked \(CUDA error: initialization error\)"):
        assert len(list(pinned(Numbered(5)))) == 5


@pytest.mark.filterwarnings("ignore:the ring could not be page-locked")
def test_a_refusal_of_some_slots_leaves_the_others(gpu: Any) -> None:
    locked: list[int] = []

    def refuses(size: int) -> str:
        locked.append(size)
        return "too much is locked" if len(locked) > 4 else ""

    double = gpu(refuses=refuses)
    iterator = iter(pinned(Numbered(200)))
    for k, batch in enumerate(iterator):
        assert double.is_pinned(batch) and torch.equal(batch, torch.full((500,), k))
    assert 0 < double.clones < 200


# -------------------------------------------------------------------------------------------------------------- the end


def test_what_is_lent_stays_locked_until_its_copy_is_done(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(100)))
    for _ in range(50):
        batch = next(iterator)
    settled(iterator)
    batch = next(iterator)
    assert not hasattr(batch, "cloned")
    iterator.close()
    assert len(double.registered) == 1 and double.is_pinned(batch)
    double.lag = 100
    copied = double.copy(batch)
    del batch
    gc.collect()
    for _ in range(3):
        pinning._free_late()
    assert double.registered, "the copy is not done"
    double.synchronize()
    pinning._free_late()
    assert not double.registered
    assert torch.equal(copied, torch.full((500,), 50))


def test_closing_waits_for_copies_that_nobody_knows_of(gpu: Any) -> None:
    double = gpu(lags={3: 100})
    iterator = iter(pinned(Numbered(100)))
    for _ in range(50):
        batch = next(iterator)
    settled(iterator)
    batch = next(iterator)
    double._here.stream = 3
    copied = double.copy(batch)
    double._here.stream = 0
    del batch
    iterator.close()  # the double says where memory is unregistered under a copy
    assert not double.registered and torch.equal(copied, torch.full((500,), 50))


def test_closing_does_not_wait_while_a_graph_is_captured(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(100)))
    next(iterator)
    double.captured = {0}
    iterator.close()
    assert not double.synchronized


def test_closing_ends_the_thread(gpu: Any) -> None:
    gpu()
    loader = pinned(persistent_workers=True)
    iterator = iter(loader)
    thread = iterator._pin_memory_thread
    assert len(list(iterator)) == 200 and thread.is_alive()
    assert iter(loader) is iterator and len(list(iterator)) == 200
    assert iterator._pin_memory_thread is thread
    loader.close()
    assert not thread.is_alive()
    with pytest.raises(StopIteration):
        next(iterator)


def test_dropping_it_half_way_ends_the_thread(gpu: Any) -> None:
    gpu()
    iterator = iter(pinned())
    thread = iterator._pin_memory_thread
    next(iterator)
    del iterator
    gc.collect()
    assert not thread.is_alive()


def test_the_collector_may_end_it_in_its_own_thread(gpu: Any) -> None:
    dropped = threading.Event()

    def refuses(size: int) -> str:
        if threading.current_thread().name == "shmloader_pin":
            dropped.wait(10)
            gc.collect()
        return ""

    gpu(refuses=refuses)
    iterator = iter(pinned())
    workers, iterator.cycle = iterator._workers, iterator
    for _ in range(3):  # the first may come from the slot that is locked from the start
        next(iterator)
    del iterator
    dropped.set()
    wait_for(lambda: not any(worker.is_alive() for worker in workers))
    wait_for(lambda: not any(thread.name.startswith("shmloader") for thread in threading.enumerate()))


def test_a_forked_child_frees_and_notes_nothing(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(100)))
    for _ in range(50):
        next(iterator)
    settled(iterator)
    batch = next(iterator)
    child = os.fork()
    if child == 0:
        noted: list[int] = []
        iterator._ring.slots.guard_with(noted.append, (0,))
        del batch
        os._exit(len(noted) + len(iterator._ring.slots.returns()))
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(batch, torch.full((500,), 50))
    assert double.is_pinned(batch)


# ------------------------------------------------------------------------------------------------------ no accelerator


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_torch_warns_and_nothing_is_slower() -> None:
    warned = []
    for kind in (torch.utils.data.DataLoader, shmloader.DataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            iterator = iter(kind(Numbered(10), num_workers=1, pin_memory=True))
            assert len(list(iterator)) == 10
        warned.append([(w.category, str(w.message)) for w in caught if "pin_memory" in str(w.message)])
        assert not iterator._pin_memory
    assert warned[0] == warned[1] and len(warned[1]) == (0 if ASKS_CUDA_ALONE else 1)
    assert isinstance(iterator, RingIterator) and iterator._pinning is None
