"""Page-locked slots, and that none is filled while a copy reads it; see NOTE [ Pinning ].  The device is a double."""

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
from at_line import AtLine
from conftest import ASKS_CUDA_ALONE, assert_same, run_script
from gpu_double import DoubleGpu, Event, installed

import shmloader
from shmloader._trainer import TrainerSide
from shmloader.device import captures, pinning
from shmloader.device.ahead import Ahead
from shmloader.trainer.iterator import RingIterator

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


class Numbered(torch.utils.data.Dataset):
    """Item k is full of k; the items are of one size, or grow."""

    def __init__(self, length: int = 200, size: int = 500, growth: int = 0) -> None:
        self.length, self.size, self.growth = length, size, growth

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size + self.growth * index,), index)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


def pinned(dataset: Any = None, **options: Any) -> shmloader.DataLoader[Any]:
    dataset = dataset or Numbered()
    return shmloader.DataLoader(dataset, **{"num_workers": 2, "batch_size": None, "pin_memory": True, **options})


def wait_for(what: Any) -> None:
    end = time.monotonic() + 100
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def settled(iterator: Any) -> None:
    """Wait until the thread has locked what it was asked to."""
    wait_for(lambda: not any(iterator._pinning._asked))


# --------------------------------------------------------------------------------------------------------- the ledger


def test_batches_are_page_locked_and_soon_not_copied(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(120, 20_000)))
    for k in range(120):
        batch = next(iterator)
        assert double.is_pinned(batch) and torch.equal(batch, torch.full((20_000,), k))
        if k == 40:
            settled(iterator)
            copied = double.clones
    assert copied < 20 and double.clones == copied
    assert "shmloader_pin" in double.threads


@pytest.mark.parametrize("growth", [7, pytest.param(700, marks=pytest.mark.long)])
def test_slots_that_grow_are_locked_anew_as_a_whole(gpu: Any, growth: int) -> None:
    double = gpu(lag=3)
    iterator = iter(pinned(Numbered(200, 2000, growth)))
    there = []
    for k, batch in enumerate(iterator):
        assert double.is_pinned(batch), k
        there.append(double.copy(batch))
        if k % 20 == 0:
            settled(iterator)
    double.synchronize()
    for k, copied in enumerate(there):
        assert torch.equal(copied, torch.full((2000 + k * growth,), k))
    assert len(double.sizes) > len(set(double.sizes)) or growth == 700


class Sizes(Numbered):
    """Small items, then larger ones, then small ones again."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((40_000 if 60 <= index < 100 else 20_000,), index)


def test_a_slot_that_is_to_be_locked_anew_is_not_lent(gpu: Any) -> None:
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


@pytest.mark.parametrize("batch", [torch.ones(2), [torch.ones(1), ("a", 2)], {"x": [["b"] * 9]}, numpy.ones(2), 3.5])
def test_what_torch_would_leave_as_it_is_is_not_walked_through(batch: Any) -> None:
    assert pinning._is_locked(batch, False)


@pytest.mark.parametrize("batch", [Custom(torch.ones(1)), [[Custom(torch.ones(1))]], {"x": torch.Size([1])}])
def test_what_may_have_a_way_of_its_own_is_handed_to_torch(batch: Any) -> None:
    assert not pinning._is_locked(batch, False)


def test_pickled_tensors_are_asked() -> None:
    assert not pinning._is_locked([torch.ones(1)], True)  # no accelerator: nothing is pinned


# ----------------------------------------------------------------------------------------------------------- refusals


def test_a_refusal_is_said_once_and_batches_are_copied_ahead(gpu: Any) -> None:
    double = gpu(refuses=lambda size: "CUDA_ERROR_NOT_SUPPORTED")
    loader = pinned(Numbered(30))
    with pytest.warns(UserWarning, match="could not be page-locked .CUDA_ERROR_NOT_SUPPORTED.*"):
        iterator = iter(loader)
    assert isinstance(iterator, Ahead) and iterator._pin_memory_thread.is_alive()
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


# ------------------------------------------------------------------------------------------- copies that are under way


def plain_loop(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """A copy on the current stream; the batch dies when the next one is there."""
    for batch in loader:
        yield double.copy(batch)


def side_stream(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """timm's and apex's prefetchers: copied, and dropped, inside `with stream`; then the main stream waits."""
    for batch in loader:
        with double.stream(1):
            batch = double.copy(batch)
        double.wait_stream(1)
        yield batch


def side_stream_waited_for(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """Copied on a side stream and dropped outside of it; the main stream waits before the next batch is asked for."""
    for batch in loader:
        with double.stream(1):
            there = double.copy(batch)
        batch = None
        double.wait_stream(1)
        yield there


def other_thread(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """Copied, and dropped, by a thread with a stream of its own that nobody waits for."""
    for batch in loader:
        got: list[Any] = [batch]
        batch = None

        def copy(got: list[Any] = got) -> None:
            with double.stream(2):
                got[0] = double.copy(got[0])

        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
        yield got[0]


def unwaited(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """Copied on a stream that nobody waits for, dropped on another, and by enumerate() after the next next()."""
    for _, batch in enumerate(loader):
        with double.stream(3):
            there = double.copy(batch)
        del batch
        yield there


def unseen(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """What is not covered: copied on a stream that nobody can know of, dropped on another."""
    for batch in loader:
        double._here.stream = 3
        there = double.copy(batch)
        double._here.stream = 0
        yield there


def changed(double: DoubleGpu, loop: Any, **options: Any) -> int:
    """How many batches of a few hundred have arrived with other bytes than they left with."""
    there = list(loop(double, pinned(Numbered(300), **options)))
    double.synchronize()
    return sum(not torch.equal(copied, torch.full((500,), k)) for k, copied in enumerate(there))


COVERED = [plain_loop, side_stream, side_stream_waited_for, other_thread, unwaited]


@pytest.mark.parametrize("loop", COVERED, ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("lags", [{}, {1: 3, 2: 3, 3: 3}, {0: 40, 1: 2}, {1: 40, 2: 40, 3: 40}], ids=str)
def test_no_slot_is_filled_while_a_copy_reads_it(gpu: Any, loop: Any, lags: dict[int, int]) -> None:
    double = gpu(lags=lags)
    assert changed(double, loop, spare_slots=3) == 0
    assert double.clones < 300, "all were copied: nothing was shown"


@pytest.mark.parametrize("loop", COVERED, ids=lambda loop: loop.__name__)
def test_without_events_the_double_shows_changed_bytes(gpu: Any, loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    double = gpu(lag=40)
    monkeypatch.setattr(double, "passed", lambda event: True)
    assert changed(double, loop) > 0
    double.wrong.clear()  # it was not asked before the ring was unmapped either


def test_without_the_streams_that_were_left_a_side_stream_is_not_covered(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    double = gpu(lags={3: 40})
    streams = double.streams
    monkeypatch.setattr(double, "streams", lambda noted, lent: streams(noted, None))
    assert changed(double, unwaited) > 0
    double.wrong.clear()


def test_strict_pinning_covers_the_rest(gpu: Any) -> None:
    double = gpu(lags={3: 40})
    assert changed(double, unseen) > 0
    double.wrong.clear()
    assert changed(double, unseen, strict_pinning=True) == 0


def test_nothing_waits_for_a_device_that_does_nothing(gpu: Any) -> None:
    double = gpu(lag=10**6)
    there = [double.copy(batch) for batch in pinned(Numbered(200))]
    assert double.clones > 100, "slots whose copies are under way count as lent, so the rest is copied"
    double.synchronize()
    assert all(torch.equal(copied, torch.full((500,), k)) for k, copied in enumerate(there))


def test_where_the_streams_cannot_be_told_all_are_waited_for(gpu: Any) -> None:
    double = gpu(lag=40)

    def current(index: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("not here")
        return 0

    loader = iter(pinned(Numbered(100)))
    loader._ring.slots.guard_with(current, (0,))
    there = list(other_thread(double, loader))
    assert double.synchronized > 0
    double.synchronize()
    assert all(torch.equal(copied, torch.full((500,), k)) for k, copied in enumerate(there))


def test_spare_slots_of_zero_copies_every_batch(gpu: Any) -> None:
    double = gpu()
    assert len(list(pinned(Numbered(20), spare_slots=0))) == 20
    assert double.clones == 20


# ------------------------------------------------------------------------------------------------------------ captures


def test_while_a_graph_is_captured_nothing_is_recorded_or_asked(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(200)))
    for _ in range(60):
        next(iterator)
    settled(iterator)
    batch = next(iterator)
    double.captured = {0}
    recorded, asked, clones = double.recorded, double.asked, double.clones
    for k in range(61, 100):
        batch = next(iterator)
        assert double.is_pinned(batch) and torch.equal(batch, torch.full((500,), k))
    assert (double.recorded, double.asked) == (recorded, asked)
    assert double.clones > clones + 20, "slots stay lent meanwhile, and the rest is copied"
    double.captured.clear()
    for _ in range(100, 110):
        next(iterator)
    clones = double.clones
    for _ in range(110, 150):
        next(iterator)
    assert double.clones == clones, "they were freed behind the capture"


def test_a_capture_on_another_stream_is_not_broken(gpu: Any) -> None:
    double = gpu(lag=4)
    double.captured = {9}  # the double finds fault with calls outside of the relaxed mode, and with records on it
    there = list(plain_loop(double, pinned(Numbered(100, 500, 40))))
    double.captured.clear()
    double.synchronize()
    assert all(bool((copied == k).all()) for k, copied in enumerate(there))


def test_a_batch_that_died_on_a_captured_stream_waits_for_the_capture(gpu: Any) -> None:
    double = gpu()
    iterator = iter(pinned(Numbered(100)))
    for _ in range(50):
        next(iterator)
    settled(iterator)
    batch = next(iterator)
    double.captured = {5}
    with double.stream(5):
        del batch
    next(iterator)
    slots = iterator._ring.slots
    assert [5] in [noted for _, noted in slots.returns()], "it is still to be recorded"
    double.captured.clear()
    next(iterator)
    assert [5] not in [noted for _, noted in slots.returns()]


@pytest.mark.parametrize("seen", [False, True])
def test_a_capture_that_begins_while_events_are_recorded(gpu: Any, seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are recorded anew: one that is part of a capture can be neither asked nor waited for."""
    double = gpu()
    iterator = iter(pinned(Numbered(100)))
    for _ in range(50):
        next(iterator)
    settled(iterator)
    record = double.record

    def late(streams: Any) -> Any:
        if seen:
            double.captured = {0}  # it still goes on behind the record
        else:
            captures.count_capture()  # it is over by then
        monkeypatch.setattr(double, "passed", lambda event: pytest.fail("an event of a capture is asked"))
        return [Event()]

    monkeypatch.setattr(double, "record", late)
    next(iterator)
    next(iterator)
    assert len(iterator._ring.slots.returns()) >= 2 and not iterator._ring.slots.awaiting()
    monkeypatch.undo()
    double.captured, double.record = set(), record
    next(iterator)
    next(iterator)
    assert len(iterator._ring.slots.returns()) == 1


def test_an_interrupt_at_any_line_loses_no_slot(gpu: Any) -> None:
    """Of what frees the slots: each is free in the end, once, and nothing stays locked."""
    files = (pinning.__file__,)

    def interrupt() -> None:
        raise KeyboardInterrupt

    double = gpu(lag=1)
    iterator = iter(pinned(Numbered(2000)))
    for _ in range(20):
        double.copy(next(iterator))
    settled(iterator)
    at = heard = 0
    while at == 0 or heard == at:
        at += 1
        batch = None
        try:
            with AtLine(at, interrupt, files):
                batch = next(iterator)
        except KeyboardInterrupt:
            heard += 1
        double.copy(next(iterator) if batch is None else batch)
        del batch
    assert at > 30
    slots = iterator._ring.slots
    double.lag = 0
    for _ in range(4):
        next(iterator)
    assert slots.lent <= 1
    iterator.close()
    double.synchronize()
    pinning._free_late()
    assert not double.registered and not pinning._late


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
    there = double.copy(batch)
    del batch
    gc.collect()
    for _ in range(3):
        pinning._free_late()
    assert double.registered, "the copy is not done"
    double.synchronize()
    pinning._free_late()
    assert not double.registered
    assert torch.equal(there, torch.full((500,), 50))


def test_closing_waits_for_copies_that_nobody_knows_of(gpu: Any) -> None:
    double = gpu(lags={3: 100})
    iterator = iter(pinned(Numbered(100)))
    for _ in range(50):
        batch = next(iterator)
    settled(iterator)
    batch = next(iterator)
    double._here.stream = 3
    there = double.copy(batch)
    double._here.stream = 0
    del batch
    iterator.close()  # the double says where memory is unregistered under a copy
    assert not double.registered and torch.equal(there, torch.full((500,), 50))


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


def test_the_interpreter_may_end_at_any_time() -> None:
    ran = run_script(
        """
        import sys, time, warnings
        warnings.simplefilter("ignore")
        import shmloader
        from gpu_double import DoubleGpu, installed
        from test_pinning import Numbered
        import shmloader.device.accelerator
        double = DoubleGpu(lag=5)
        shmloader.device.accelerator.find = lambda device=None: double
        shmloader.device.accelerator.kind = lambda: "cuda"
        shmloader.device.accelerator.count = lambda: 1
        if __name__ == "__main__":
            print(time.monotonic())
            loaders = [
                shmloader.DataLoader(Numbered(), num_workers=1, pin_memory=True),
                shmloader.DataLoader(Numbered(), num_workers=1, device="cuda", persistent_workers=True),
                shmloader.DataLoader(Numbered(), device="cuda"),
            ]
            iterators = [iter(loader) for loader in loaders]
            batches = [next(iterator) for iterator in iterators for _ in range(9)]
            print("end")
        """
    )
    assert (ran.status, ran.err) == (0, "") and ran.out.endswith("\nend\n") and ran.seconds < 20


# ------------------------------------------------------------------------------------------------------ no accelerator


def test_without_an_accelerator_torch_warns_and_nothing_is_slower() -> None:
    assert not torch.accelerator.is_available()
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


def test_a_ring_that_is_not_guarded_asks_nobody() -> None:
    iterator = iter(shmloader.DataLoader(Numbered(10), num_workers=1))
    ring: TrainerSide = iterator._ring
    for _ in iterator:
        assert not ring.slots.any_held_back
