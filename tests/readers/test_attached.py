"""One reader's side of a ring, in the process of its conductor and worker: what it may take, and what it holds."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hostile import entry_at, poke

from shmloader._torch import ExceptionWrapper
from shmloader.batch import objects
from shmloader.batch.chunk_walk import ChunkWalks
from shmloader.core.attached import AttachedSide
from shmloader.core.batch_reader import BatchReader
from shmloader.core.batch_writer import Writer
from shmloader.core.epoch_counts import EpochCounts
from shmloader.core.ring import FILLED
from shmloader.core.trainer import TrainerSide
from shmloader.core.turns import Meter
from shmloader.core.worker import WorkerSide
from shmloader.readers.attachment import Memory
from shmloader.ring.segment import Segment


class Sides:
    """A conductor, a worker that makes of each index its number, and readers.

    Args:
        readers: How many.
        reads: Whether the conductor reads too.
    """

    def __init__(self, readers: int = 1, reads: bool = True) -> None:
        self.segment = Segment(1, 4, 4, 8, "memfd", None, False)
        self.conductor = TrainerSide(self.segment, False, 2, True)
        self.readers = self.conductor.read_elsewhere(reads)
        self.segment.format(self.conductor)
        self.worker = WorkerSide(self.segment, False, 0, 0, 0)
        self.writer = Writer(self.worker, objects, ChunkWalks())
        self.read = BatchReader(ExceptionWrapper).read
        self.attached = [self.attach() for _ in range(readers)]

    def attach(self) -> AttachedSide:
        given = self.readers.admit()
        assert given is not None
        self.fd = os.dup(self.segment.fd)
        made = AttachedSide(Memory(self.segment.geometry, self.fd), False, *given, 2, Meter(0))
        os.close(self.fd)
        return made

    def make(self) -> None:
        task: Any = self.worker.claim()
        self.writer.begin(len(task) if self.worker.rows else 0, None)
        self.writer.write([torch.tensor(task), [f"text {index}" for index in task]])
        self.worker.publish(FILLED)

    def conduct(self) -> Any:
        batch = self.read(self.conductor.take(), True)
        return batch[0].tolist(), batch[1]

    def take(self, side: AttachedSide, copy: bool = True) -> Any:
        lease = side.lend()
        assert lease is not None
        batch = self.read(lease, copy)
        del lease
        side.took()
        return batch[0].tolist(), batch[1]

    def close(self) -> None:
        self.attached.clear()
        self.conductor.close()
        self.segment.close()
        vars(self).clear()  # the conductor has a view of its own


@pytest.fixture
def sides() -> Iterator[Sides]:
    made = Sides()
    yield made
    made.close()


def test_a_batch_of_chunks_is_ready_when_all_of_them_are_and_is_the_conductors(sides: Sides) -> None:
    (side,) = sides.attached
    for first in (0, 10):
        sides.conductor.open_chunks([0, 0, 0], [[first, first + 1], [first + 2, first + 3], [first + 4]])
        for _ in range(3):
            assert not side.ready()
            sides.make()
        assert side.ready()
        mine = sides.take(side)
        assert mine == sides.conduct() == ([*range(first, first + 5)], [f"text {k}" for k in range(first, first + 5)])
    assert not side.ready()


def test_what_lend_gave_is_given_again_until_it_was_taken(sides: Sides) -> None:
    (side,) = sides.attached
    sides.conductor.open(0, [1])
    sides.make()
    lease = side.lend()
    assert lease is not None and side.lend() is lease and side.cursor == 1 and side.slots.lent == 1
    assert sides.read(lease, True)[0].tolist() == [1]
    del lease
    side.took()
    assert side.slots.lent == 0 and not sides.readers.holds(0)
    with pytest.raises(RuntimeError, match="sequence 1 is not ready"):
        side.lend()


def test_a_lease_that_cannot_be_read_holds_nothing_although_it_lives(sides: Sides) -> None:
    (side,) = sides.attached
    sides.conductor.open(0, [1])
    sides.make()
    lease = side.lend()
    assert lease is not None and sides.readers.holds(0)
    lease.fail()
    side.took()
    assert not sides.readers.holds(0) and side.slots.lent == 0


def test_the_place_of_a_batch_is_known_while_the_ring_has_it_or_the_one_before_it(sides: Sides) -> None:
    conductor, readers = sides.conductor, sides.readers
    for serial, count in enumerate((3, 9)):
        conductor.begin_epoch(EpochCounts(), True, None, serial, False)
        for k in range(count):
            at = conductor.sequences.next_open
            assert readers.find(serial, k) == (at if k else None)  # only the host knows where an epoch begins
            conductor.open(0, [k])
            assert readers.named(at) == (serial, k)
            assert readers.find(serial, k) == at and readers.find(serial, k + 1) == at + 1
            assert readers.find(serial, k + 2) is None
            sides.make()
            sides.take(sides.attached[0])
            sides.conduct()
        if not serial:
            assert readers.find(0, 3) == 3  # where the epoch has ended
    assert readers.find(1, 0) is None and readers.find(0, 3) is None
    with pytest.raises(LookupError):  # its entry was opened again between find() and admit()
        readers.admit(4)
    assert readers.known == 1


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_reader_begins_behind_what_the_last_one_took_although_the_conductor_has_not_seen_it(taken: int) -> None:
    sides = Sides(reads=False)
    for k in range(3):
        sides.conductor.open(0, [k])
        sides.make()
    for k in range(taken):
        assert sides.take(sides.attached[0])[0] == [k]
    sides.readers.drop(0)
    sides.readers.bury(0)  # which finds nothing due any more
    assert sides.readers.joins_at() == taken
    if taken < 3:
        assert sides.take(sides.attach())[0] == [taken]
    assert sides.readers.admit()[1] == 3
    sides.close()


def test_a_reader_that_was_dropped_passes_and_keeps_what_it_lends(sides: Sides) -> None:
    (side,) = sides.attached
    for k in range(2):
        sides.conductor.open(0, [k])
        sides.make()
    lease = side.lend()
    assert lease is not None
    sides.readers.drop(0)
    assert not side.ready() and side.passed and side.lend() is lease
    side.took()
    assert side.lend() is None and not side.skip() and not side.wait()
    for k in range(2):
        assert sides.conduct()[0] == [k]
    for k in range(2, 8):  # the entries are opened again, and it holds up nothing
        sides.conductor.open(0, [k])
        sides.make()
        assert sides.conduct()[0] == [k]
    assert not side.ready() and side.passed
    assert sides.read(lease, True)[0].tolist() == [0] and sides.readers.holds(0)
    del lease
    assert not sides.readers.holds(0)


@pytest.mark.parametrize("waits", ["conductor", "reader"])
def test_a_signal_that_comes_between_two_sleeps_is_handled_before_the_second(sides: Sides, waits: str) -> None:
    """NOTE [ Sleep ] in trainer.pyx."""
    side: Any = sides.conductor if waits == "conductor" else sides.attached[0]
    seen: list[str] = []
    was_handled = threading.Event()

    class Interrupted(BaseException):
        pass

    def interrupt(*_: Any) -> None:
        seen.append("handled")
        raise Interrupted

    def wake_and_interrupt() -> None:
        time.sleep(0.3)  # until the main thread sleeps
        sides.readers.drop(31)  # tolls both bells.  The main thread wakes, and waits for the GIL
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        if not was_handled.wait(5):
            seen.append("woken")
            side.alarm()

    before, interval = signal.signal(signal.SIGALRM, interrupt), sys.getswitchinterval()
    sys.setswitchinterval(10)  # so the other thread keeps the GIL until it sleeps
    thread = threading.Thread(target=wake_and_interrupt)
    try:
        thread.start()
        with pytest.raises(Interrupted):
            side.wait()
        assert seen == ["handled"]
    finally:
        was_handled.set()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGALRM, before)
        thread.join()


def overwritten_entry(sides: Sides) -> AttachedSide:
    sides.conductor.open(0, [1])
    sides.make()
    poke(sides.segment, *entry_at(sides.segment, 0, "meta_size"), 0xFFFFFFF)
    assert sides.attached[0].ready()
    return sides.attached[0]


def test_an_entry_that_cannot_be_right_is_an_error_for_who_is_due(sides: Sides) -> None:
    with pytest.raises(RuntimeError, match="the ring's memory was overwritten"):
        overwritten_entry(sides).lend()
    assert sides.readers.holds(0)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the collector does not run where an object is made")
def test_it_is_none_for_who_was_dropped_meanwhile_because_the_entry_was_opened_again(sides: Sides) -> None:
    lend = overwritten_entry(sides).lend

    def collects(*_: Any) -> None:  # where the error is made, that is after the entries were read
        sides.readers.drop(0)

    before = gc.get_threshold()
    gc.callbacks.append(collects)
    gc.set_threshold(1)
    try:
        lent = lend()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collects)
    assert lent is None and not sides.readers.holds(0)


@pytest.mark.parametrize("wakes", ["alarm", "publish", "bury", "leave"])
def test_a_reader_that_sleeps_wakes(sides: Sides, wakes: str) -> None:
    (side,) = sides.attached
    sides.conductor.open(0, [1])
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((side.wait(), side.passed, side.alarmed)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    leave: Callable[[], None] = side.leave
    does = {"alarm": side.alarm, "publish": sides.make, "leave": lambda: (leave(), side.alarm())}
    does["bury"] = lambda: (sides.readers.bury(0), sides.make())
    does[wakes]()
    thread.join(10)
    assert not thread.is_alive()
    expected = {"alarm": (False, False, True), "publish": (True, False, False), "leave": (False, True, True)}
    assert found == [expected.get(wakes, (False, True, False))]


def test_the_conductor_sleeps_until_the_last_reader_has_taken_what_is_open() -> None:
    sides = Sides(2)
    one, other = sides.attached
    for k in range(4):
        sides.conductor.open(0, [k])
        sides.make()
    for k in range(4):
        assert sides.conduct()[0] == sides.take(one)[0] == [k]
    assert sides.readers.holding_up() == 2 and sides.readers.starved() == 1
    thread = threading.Thread(target=sides.readers.wait_until_taken)
    thread.start()
    for k in range(4):
        thread.join(0.05)
        assert thread.is_alive() and sides.take(other)[0] == [k]
    thread.join(10)
    assert not thread.is_alive()
    sides.close()
