"""No slot is filled while a copy reads it, on whatever stream, captured or not: NOTE [ Pinning ], on a double."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from at_line import AtLine
from gpu_double import DoubleGpu, installed
from page_locked import Numbered, pinned, settled

from shmloader.device import pinning

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


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
            copied = double.copy(batch)
        batch = None
        double.wait_stream(1)
        yield copied


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
            copied = double.copy(batch)
        del batch
        yield copied


def unseen(double: DoubleGpu, loader: Any) -> Iterator[Any]:
    """What is not covered: copied on a stream that nobody can know of, dropped on another."""
    for batch in loader:
        double._here.stream = 3
        copied = double.copy(batch)
        double._here.stream = 0
        yield copied


class Locked:
    """A loader's batches.  Its slots are page-locked early: otherwise a late thread has all of them copied.

    It keeps no batch, because a loop decides when its batch dies.
    """

    def __init__(self, loader: Any) -> None:
        self._iterator, self._given = iter(loader), 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if 0 < self._given < 20:
            settled(self._iterator)
        self._given += 1
        return next(self._iterator)


def changed(double: DoubleGpu, loop: Any, **options: Any) -> int:
    """How many batches of a few hundred have arrived with other bytes than they left with."""
    on_device = list(loop(double, Locked(pinned(Numbered(300), **options))))
    double.synchronize()
    return sum(not torch.equal(copied, torch.full((500,), k)) for k, copied in enumerate(on_device))


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


def test_strict_pinning_covers_the_rest(monkeypatch: pytest.MonkeyPatch, gpu: Any) -> None:
    double = gpu(lags={3: 40})
    assert changed(double, unseen) > 0
    double.wrong.clear()
    monkeypatch.setenv("SHMLOADER_STRICT_PINNING", "1")
    assert changed(double, unseen) == 0


def test_nothing_waits_for_a_device_that_does_nothing(gpu: Any) -> None:
    double = gpu(lag=10**6)
    on_device = [double.copy(batch) for batch in pinned(Numbered(200))]
    assert double.clones > 100, "slots whose copies are under way count as lent, so the rest is copied"
    double.synchronize()
    assert all(torch.equal(copied, torch.full((500,), k)) for k, copied in enumerate(on_device))


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
    on_device = list(plain_loop(double, pinned(Numbered(100, 500, 40))))
    double.captured.clear()
    double.synchronize()
    assert all(bool((copied == k).all()) for k, copied in enumerate(on_device))


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
