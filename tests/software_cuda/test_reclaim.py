"""The look at dead batches that is one call of C (reclaim.pxi): it is the one that is taken, and it misses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from software_cuda import runtime
from software_cuda.loops import (
    LOOPS,
    changed,
    copied,
    current,
    external,
    high_priority,
    loader,
    new_each_time,
    plain,
    set_and_reset,
    side,
)

from shmloader.device import pinning

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
on_software = pytest.mark.skipif(not runtime.is_software(), reason="that is ordered of the software CUDA")


@pytest.fixture
def long_looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one with each look that is taken the long way, with whether the ring is closed."""
    taken: list[bool] = []
    look = pinning.Pinning._reclaim

    def counting(self: pinning.Pinning) -> None:
        taken.append(self._closed)
        look(self)

    monkeypatch.setattr(pinning.Pinning, "_reclaim", counting)
    return taken


@pytest.fixture
def late() -> Iterator[None]:
    runtime.late(5, 50)
    yield
    runtime.late(0, 0)


@pytest.mark.parametrize("loop", [plain, LOOPS[4], LOOPS[7]], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("stream", [current, side, new_each_time, high_priority, set_and_reset])
def test_on_torchs_own_streams_no_look_is_long(loop: Any, stream: Any, long_looks: list[bool]) -> None:
    assert changed(loop(loader(40), stream)) == 0
    assert all(long_looks), "but for those that end it"


def test_batches_on_the_device_take_none(long_looks: list[bool]) -> None:
    assert changed(loader(40, device="cuda")) == 0
    assert all(long_looks)


def test_a_stream_of_others_takes_the_long_way(long_looks: list[bool]) -> None:
    assert changed(plain(loader(40), external)) == 0
    assert not all(long_looks), "so they can be counted"


@pytest.mark.usefixtures("late")
def test_a_stream_that_is_chosen_late_is_found() -> None:
    """The streams found earlier count only as long as they are current."""
    copies = []
    runtime.late(0, 0)
    for k, batch in enumerate(loader()):
        if k == 30:
            torch.cuda.synchronize()  # so nothing on the default stream is later than what follows
            runtime.late(5, 50)
        with current() if k < 30 else side():
            copies.append(copied(batch))
        del batch
    wrong = changed(copies)
    assert (len(copies), wrong) == (100, 0)


@pytest.mark.usefixtures("late")
def test_the_default_stream_counts_where_another_one_is_current() -> None:
    """Nobody notes when it is left."""
    copies = []
    with side():
        for batch in loader():
            with torch.cuda.stream(torch.cuda.default_stream()):
                copies.append(copied(batch))
            del batch
        wrong = changed(copies)
    assert (len(copies), wrong) == (100, 0)


@pytest.mark.usefixtures("late")
def test_a_batch_that_is_older_than_the_last_look_is_copied_where_it_was() -> None:
    """The stream of its copy was left before any batch was lent that the last look was about."""
    batches = iter(loader())
    for _ in range(20):
        batch = next(batches)
    batch_two, number = next(batches), 20
    runtime.late(300, 300)
    with side():
        found = copied(batch_two)
    for _ in range(10):  # of these none is copied
        batch = next(batches)
    del batch, batch_two
    for _ in batches:
        pass
    runtime.late(0, 0)
    torch.cuda.synchronize()
    assert bool((found.cpu() == number).all())


@on_software
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("is_over", [False, True])
def test_a_capture_that_begins_while_events_are_recorded(is_over: bool, long_looks: list[bool]) -> None:
    """They are recorded again: an event of a capture can be neither queried nor waited for (that is a violation)."""
    graph, stream, seen = torch.cuda.CUDAGraph(), torch.cuda.Stream(), []
    batches = iter(loader())
    slots = batches._ring.slots

    def begin() -> None:
        seen.append("begun")
        graph.capture_begin(capture_error_mode="relaxed")
        if is_over:
            runtime.before("cuStreamIsCapturing", end)

    def end() -> None:
        seen.append("over")
        graph.capture_end()

    with torch.cuda.stream(stream):
        for _ in range(50):
            batch = next(batches)
        while any(batches._pinning._asked):
            pass
        runtime.before("cuEventRecord", begin)
        while not seen:  # each second death is looked at, or each one
            dead = len(slots.returns())
            batch = next(batches)
        assert seen == ["begun", "over"][: 1 + is_over]
        assert len(slots.returns()) == dead + 1, "the one that has died since, and those that wait for other events"
        if not is_over:
            runtime.before("cuEventRecord", lambda: seen.append("recorded"))
            batch = next(batches)
            runtime.before("", lambda: None)
            assert seen == ["begun"], "an event was put into the capture"
            assert len(slots.returns()) == dead + 2
            end()
        batch = next(batches)
        assert len(slots.returns()) <= 1, "all others wait for new events, and that one may have been a copy"
        del batch
    assert not any(long_looks)


@on_software
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capture_that_begins_while_events_are_asked_is_not_broken(long_looks: list[bool]) -> None:
    """In another thread, in the mode that forgives least: ours says that it has nothing to do with it."""
    started, over = threading.Event(), threading.Event()

    def capture() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            started.set()
            over.wait()

    def begin() -> None:
        thread.start()
        started.wait()

    batches, thread = iter(loader()), threading.Thread(target=capture)
    for _ in range(50):
        batch = next(batches)
    runtime.before("cuEventQuery", begin)
    while not started.is_set():
        batch = next(batches)
    over.set()
    thread.join()
    del batch
    assert not any(long_looks)


@on_software
def test_the_same_events_are_recorded_again_and_again() -> None:
    made: list[int] = []

    def count() -> None:
        made.append(1)
        runtime.before("cuEventCreate", count)

    runtime.before("cuEventCreate", count)
    assert changed(plain(loader(300), side)) == 0
    assert len(made) < 20
    runtime.before("", lambda: None)
