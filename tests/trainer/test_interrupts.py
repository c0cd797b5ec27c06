"""Ctrl-C at any line while an iterator begins or ends: it is raised, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from at_line import AtLine
from conftest import Augmented
from interrupts import left_since, present
from scripts import run_script

import shmloader
from shmloader.system import signals
from shmloader.trainer import worker_set

# ---------------------------------------------------------------------------------------------------- random moments


@pytest.mark.parametrize(
    ("moment", "start", "count", "span"),
    [
        ("next", "fork", 5, 0.05),
        pytest.param("start", "fork", 40, 0.05, marks=pytest.mark.long),
        pytest.param("end", "fork", 60, 0.05, marks=pytest.mark.long),
        pytest.param("start", "spawn", 4, 0.4, marks=pytest.mark.long),
    ],
)
def test_random_moments(moment: str, start: str, count: int, span: float) -> None:
    """Where torch's loader was interrupted so, 7 of 30 ends and 17 of 30 starts were not heard or left something."""
    ran = run_script(
        f"""
        import sys, warnings, interrupts
        warnings.simplefilter("ignore")
        if __name__ == "__main__":
            arguments = "--moment {moment} --start {start} --count {count} --span {span}"
            sys.exit(interrupts.main(arguments.split()))
        """
    )
    assert ran.status == 0, ran.out + ran.err


# ----------------------------------------------------------------------------------------------------- at every line


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ctrl-C raises, and says nothing where it is lost: the tests see that it was not heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: None)
    yield
    signal.signal(signal.SIGINT, before)
    assert signals._hold is None


def begin() -> Any:
    return iter(shmloader.DataLoader(Augmented(4), num_workers=2, timeout=30))


def begin_to_end() -> None:
    iterator = begin()
    next(iterator)
    iterator.close()


def drop() -> None:
    del iterators[:]


def exhaust() -> None:
    assert len(list(iterators[0])) == 4


iterators: list[Any] = []

MOMENTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "start": (lambda: iterators.append(begin()), False),
    "close": (lambda: iterators[0].close(), True),
    "drop": (drop, True),
    "exhaust": (exhaust, True),
}


@pytest.mark.parametrize(
    "moment", ["start", *(pytest.param(end, marks=pytest.mark.long) for end in ("exhaust", "close", "drop"))]
)
def test_ctrl_c_at_any_line(moment: str, ctrl_c: None) -> None:
    """At lines drawn from all that run meanwhile, whosever they are: fork hooks, multiprocessing, threading."""
    what, after_start = MOMENTS[moment]
    begin_to_end()
    if after_start:
        iterators.append(begin())
    with AtLine(0, press) as counted:
        what()
    drop()
    before = present()
    # Before anything is held back; but no signal comes at the `try:` that __del__() begins with: it is no instruction.
    first = range(3 if moment == "drop" else 1, 20)
    for line in (*first, *sorted(random.Random(7).sample(range(20, counted.lines), 40))):
        if after_start:
            iterators.append(begin())
        heard = False
        try:
            with AtLine(line, press) as reached:
                what()
        except KeyboardInterrupt:
            heard = True
        # what is raised in a __del__() is lost, which is why signals are held back in there as soon as may be
        missed = moment != "drop" or reached.was_held
        assert heard or reached.lines < line or not missed, f"not heard at line {line} of {counted.lines}"
        drop()
        left = left_since(before)
        assert not left, f"at line {line} of {counted.lines}: {left}"
    begin_to_end()


# ---------------------------------------------------------------------------------------------- what may take long


class Hanging(Augmented):
    def __getitem__(self, index: int) -> Any:
        while index:
            time.sleep(60)
        return super().__getitem__(index)


@pytest.mark.parametrize("moment", ["close", "drop"])
def test_ctrl_c_does_not_wait_for_workers_that_hang(moment: str, ctrl_c: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But where it would not be heard: an iterator that is dropped gives them their time."""
    monkeypatch.setattr(worker_set, "PATIENCE", 2.0 if moment == "drop" else 50.0)
    iterators.append(iter(shmloader.DataLoader(Hanging(4), num_workers=2)))
    next(iterators[0])
    workers = list(iterators[0]._workers)
    while not all(iterators[0]._ring.sequences.holds(index) for index in range(2)):
        time.sleep(0.01)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        MOMENTS[moment][0]()
        timer.join()
        for _ in range(9):
            pass
    assert time.monotonic() - began < 25
    assert not any(worker.is_alive() for worker in workers)
    drop()
    timer.join()


class Pickled(Augmented):
    """Is interrupted while it is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        press()
        raise AssertionError("it went on")


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_ctrl_c_while_the_dataset_is_pickled(start: str, ctrl_c: None) -> None:
    """That may take long, and is no moment where anything could be lost."""
    with pytest.raises(KeyboardInterrupt) as caught:
        iter(shmloader.DataLoader(Pickled(), num_workers=2, multiprocessing_context=start))
    assert caught.value.__context__ is None, "it went on"
    caught.value.__traceback__ = None  # it holds the half-made iterator


# ------------------------------------------------------------------------------------------------- what else may fail


class Undead:
    """A worker that the kernel does not let go of."""

    pid = os.getpid()
    sentinel = 0
    exitcode = None

    def is_alive(self) -> bool:
        return True

    def terminate(self) -> None: ...

    kill = terminate

    def join(self, timeout: float | None = None) -> None: ...


def test_no_memory_is_taken_from_a_worker_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_set, "PATIENCE", 0.2)
    iterator = begin()
    batch = next(iterator)
    ring = iterator._ring
    iterator._workers.append(Undead())
    iterator.close()
    assert ring.stopped and ring.committed(0) > 0, "what it looks at is still there"
    assert batch["i"].tolist() == [0]
    assert list(iterator) == []
