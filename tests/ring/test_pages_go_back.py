"""Slots give pages back that are of no use for long: of loaders at rest, and of batches that were larger than others.

NOTE [ Pages go back ] in cython_ext/ring/free_slots.pxi.
"""

from __future__ import annotations

import gc
import os
import time
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from conftest import assert_same
from hostile import BothSides

import shmloader
from shmloader.ring.growth import FIRST_COMMIT

MiB = 1 << 20
LONG_AGO = 1  # since when a ring has rested


def whole(size: int, value: int = 1) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


def pages(ring: Any) -> int:
    """Bytes that the slots of a ring have, as the kernel counts them."""
    return os.fstat(ring.segment.fd).st_blocks * 512


def fill_all(ring: BothSides, size: int) -> None:
    """Have each of the four slots hold a batch of this size."""
    held = []
    for k in range(2):
        ring.fill(whole(size, k))
        held.append(ring.take())
    for _ in range(2):
        ring.trainer.open(0, 0)
    for k in range(2):
        ring.claim_again()
        ring.writer.write(whole(size, k))
        ring.worker.publish(0)
    del held
    ring.take()
    ring.take()


def commits(ring: BothSides, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes for which slots of this ring grow from now on."""
    commit, grown = ring.segment.commit, []

    def counted(side: Any, payload: int, size: int, filled: int) -> None:
        grown.append(size)
        commit(side, payload, size, filled)

    monkeypatch.setattr(ring.segment, "commit", counted)
    return grown


def step(times: int = 10) -> None:
    """Take so many batches of another loader."""
    batches = iter(shmloader.DataLoader(range(times + 8), batch_size=None, num_workers=1))
    for _ in range(times):
        next(batches)
    batches.close()  # type: ignore[attr-defined]


class TestAtRest:
    def test_its_free_slots_give_their_pages_back(self) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, MiB)
            ring.fill(whole(MiB, 7))
            lent = ring.take()
            assert pages(ring) > 4 * MiB
            ring.trainer.slots.rest(LONG_AGO)
            step()
            assert MiB < pages(ring) < 2 * MiB
            assert_same(lent, whole(MiB, 7))
            del lent
            assert pages(ring) < MiB, "its last batch has died"
            for k in range(6):
                ring.fill(whole(MiB, k))
                assert_same(ring.take(), whole(MiB, k))

    def test_64_megabytes_with_each_batch_of_another_loader(self) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, 33 * MiB)
            ring.trainer.slots.rest(LONG_AGO)
            for left in (4, 2):
                assert pages(ring) // (33 * MiB) == left
                step(1)
            assert pages(ring) < MiB

    def test_the_tails_of_slots_that_were_mapped_again_go_too(self) -> None:
        """NOTE [ Rooms ]."""
        with BothSides(memory="memfd") as ring:
            fill_all(ring, 4 * MiB)
            ring.trainer.slots.rest(LONG_AGO)
            step(5)
            assert pages(ring) < MiB
            ring.trainer.slots.wake()
            ring.fill(whole(5 * MiB))
            assert_same(ring.take(), whole(5 * MiB))

    def test_not_before_five_seconds(self) -> None:
        with BothSides(memory="memfd") as ring, BothSides(memory="memfd") as other:
            fill_all(ring, MiB)
            fill_all(other, MiB)
            other.trainer.slots.rest(LONG_AGO)
            ring.trainer.slots.rest()
            step()
            assert pages(other) < MiB
            assert pages(ring) > 4 * MiB or time.monotonic_ns() - ring.trainer.slots.rested_at > 5e9

    @pytest.mark.parametrize(("size", "keep"), [(23, [True, False, False, True]), (1, [True] * 4)])
    def test_at_once_if_two_others_rest_since_then_and_all_hold_much(self, size: int, keep: list[bool]) -> None:
        with ExitStack() as stack:
            rings = [stack.enter_context(BothSides(memory="memfd")) for _ in range(4)]
            began = time.monotonic()
            for ring in rings:
                fill_all(ring, size * MiB)
                ring.trainer.slots.rest()
            rings[0].trainer.slots.wake()  # it takes its turn, and rests last
            fill_all(rings[0], size * MiB)
            rings[0].trainer.slots.rest()
            step(20)
            for ring, keeps in zip(rings, keep, strict=True):
                assert (pages(ring) > 4 * MiB) == keeps or (keeps and time.monotonic() - began > 5)
            for ring in rings:
                ring.fill(whole(size * MiB, 3))
                assert_same(ring.take(), whole(size * MiB, 3))

    @pytest.mark.parametrize(("size", "keeps"), [(25, False), (15, True)])
    def test_when_a_third_one_begins_if_both_at_rest_hold_much(self, size: int, keeps: bool) -> None:
        with ExitStack() as stack:
            first, last, third = (stack.enter_context(BothSides(memory="memfd")) for _ in range(3))
            began = time.monotonic()
            for ring in (first, last):
                fill_all(ring, size * MiB)
                ring.trainer.slots.rest()
            third.trainer.slots.wake()
            assert pages(first) > 4 * size * MiB, "not at once, because that takes long"
            step(20)
            assert (pages(first) > 4 * MiB) == keeps or (keeps and time.monotonic() - began > 5)
            assert pages(last) > 4 * MiB or time.monotonic() - began > 5

    def test_not_if_it_is_under_way_again(self) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, MiB)
            ring.trainer.slots.rest(LONG_AGO)
            ring.trainer.slots.wake()
            step()
            assert pages(ring) > 4 * MiB
            ring.trainer.slots.rest(LONG_AGO)
            step()
            ring.trainer.slots.wake()
            ring.fill(whole(MiB))
            ring.take()
            assert pages(ring) > MiB, "a slot that becomes free keeps its pages"

    def test_page_locked_slots_keep_theirs(self) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, MiB)
            ring.trainer.slots.guard_with(lambda device: None, (0,))
            ring.trainer.slots.rest(LONG_AGO)
            step()
            for _ in range(80):
                ring.fill(whole(10))
                ring.take()
            assert pages(ring) > 4 * MiB

    def test_a_batch_under_way_is_left_alone(self) -> None:
        """The next epoch's, if epochs overlap."""
        with BothSides(memory="memfd") as ring:
            fill_all(ring, MiB)
            ring.claim()
            at = ring.worker.allocate(MiB)
            ring.worker.write(at, bytes([9]) * MiB)
            ring.trainer.slots.rest(LONG_AGO)
            step()
            ring.worker.rewind()
            ring.writer.write(whole(MiB, 9))
            ring.worker.publish(0)
            assert MiB < pages(ring) < 2 * MiB
            assert_same(ring.take(), whole(MiB, 9))

    def test_a_forked_process_gives_nothing_back(self) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, MiB)
            ring.trainer.slots.rest(LONG_AGO)
            had = [ring.trainer.committed(k) for k in range(4)]
            if (child := os.fork()) == 0:
                try:
                    step()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert [ring.trainer.committed(k) for k in range(4)] == had and pages(ring) > 4 * MiB

    def test_loaders_of_which_another_one_is_iterated(self) -> None:
        def of(value: int) -> Any:
            return shmloader.DataLoader(
                [whole(MiB, value)] * 12, batch_size=None, num_workers=2, persistent_workers=True
            )

        loaders = [of(k) for k in range(3)]
        for epoch in range(2):
            for k, loader in enumerate(loaders):
                batches = iter(loader)
                slots = batches._ring.slots  # type: ignore[attr-defined]
                assert slots.rested_at == 0
                for batch in batches:
                    assert_same(batch, whole(MiB, k))
                del batch
                assert slots.rested_at > 0
                if epoch == 0:
                    slots.rest(LONG_AGO)
                    before = batches._ring.committed_in_all()  # type: ignore[attr-defined]
                    step()
                    left = batches._ring.committed_in_all()  # type: ignore[attr-defined]
                    assert left <= before // 4
        for loader in loaders:
            loader.close()

    def test_a_ring_that_is_gone_is_forgotten(self) -> None:
        with BothSides() as ring:
            ring.trainer.slots.rest(LONG_AGO)
        del ring
        gc.collect()
        step()


class TestHundredsOfMegabytes:
    def test_a_slot_gives_its_pages_back_with_its_batch(self) -> None:
        with BothSides(memory="memfd") as ring:
            for size, keeps in [(255, True), (257, False), (255, True)]:
                ring.fill(whole(size * MiB, size % 256))
                lent = ring.take()
                assert_same(lent, whole(size * MiB, size % 256))
                assert pages(ring) > size * MiB
                del lent
                assert (pages(ring) > 255 * MiB) == keeps

    def test_a_page_locked_one_keeps_them(self) -> None:
        with BothSides(memory="memfd") as ring:
            ring.trainer.slots.guard_with(lambda device: None, (0,))
            ring.fill(whole(257 * MiB))
            ring.take()
            assert pages(ring) > 257 * MiB


class TestOutliers:
    """The ring has four slots, so sixteen batches are a period."""

    def test_slots_shrink_when_batches_do(self) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, 4 * MiB)
            assert pages(ring) > 16 * MiB
            for k in range(60):
                ring.fill([whole(1000, k), whole(50_000, k)])
                assert_same(ring.take(), [whole(1000, k), whole(50_000, k)])
            assert pages(ring) < 2 * MiB
            fill_all(ring, 5 * MiB)

    @pytest.mark.parametrize(("large", "small"), [(4 * MiB, MiB), (700_000, 100)], ids=["not much", "little"])
    def test_slots_that_are_not_much_larger_keep_their_pages(self, large: int, small: int) -> None:
        with BothSides(memory="memfd") as ring:
            fill_all(ring, large)
            had = pages(ring)
            for _ in range(80):
                ring.fill(whole(small))
                ring.take()
            assert pages(ring) == had

    def test_not_within_a_period(self) -> None:
        with BothSides(memory="memfd") as ring:
            for k in range(160):
                ring.fill(whole(4 * MiB if k % 15 == 0 else 1000))
                ring.take()
                assert pages(ring) > 4 * MiB

    def test_batches_that_become_larger_find_their_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with BothSides(memory="memfd") as ring:
            for k in range(150):
                if k == 100:
                    grown = commits(ring, monkeypatch)
                ring.fill(whole(1000 if k < 100 else 4 * MiB))
                ring.take()
            assert len(grown) <= 4

    @pytest.mark.parametrize(("every", "times"), [(50, 20), (200, 6)])
    def test_batches_that_are_large_once_in_a_while_soon_find_their_pages(
        self, every: int, times: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with BothSides(memory="memfd") as ring:
            grown = commits(ring, monkeypatch)
            for k in range(every * times):
                ring.fill(whole(4 * MiB if k % every == 0 else 1000))
                ring.take()
            assert len(grown) <= 6, "once for each time that periods became longer"

    def test_batches_stay_right_whatever_their_sizes_are(self) -> None:
        sizes = [(k * 7919) % 97 for k in range(400)]
        with BothSides() as ring:
            for k, size in enumerate(sizes):
                size = size * (50_000 if k // 60 % 2 else 40)
                ring.fill([whole(size, k % 256), whole(k, 3)])
                assert_same(ring.take(), [whole(size, k % 256), whole(k, 3)])
                assert ring.trainer.committed(ring.payload) >= FIRST_COMMIT
