"""Signal handlers that are held back: none is called in between, none is forgotten, and all are put back."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from at_line import AtLine

from shmloader.core.process import in_del
from shmloader.system import signals
from shmloader.system.signals import held, let_through


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Ctrl-C raises, whatever this process was started with, and so does SIGTERM; all is to be as it was in the end."""
    before = {number: signal.signal(number, handler) for number, handler in THEIRS.items()}
    yield
    found = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert found == THEIRS
    assert signals._hold is None


def leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(number)


THEIRS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: leave}


def press(number: int = signal.SIGINT) -> None:
    """The process gets the signal, and this thread calls its handler before the next line."""
    signal.raise_signal(number)


def test_what_comes_is_heard_when_it_is_over() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held():
        press()
        press()
        steps.append(1)
        with held():
            press()
        steps.append(2)
    assert steps == [1, 2]
    press_now()


def press_now() -> None:
    with pytest.raises(KeyboardInterrupt):
        press()


def test_an_error_does_not_hide_what_came() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, held():
        press()
        raise ValueError
    assert type(caught.value.__context__) is ValueError


def test_each_handler_is_called_once_whatever_another_raises() -> None:
    called = []

    def note(number: int, frame: FrameType | None) -> None:
        called.append((number, type(frame)))

    def fail(number: int, frame: FrameType | None) -> None:
        called.append((number, type(frame)))
        raise RuntimeError("a worker died")

    before = {number: signal.signal(number, handler) for number, handler in ((10, note), (signal.SIGCHLD, fail))}
    try:
        with pytest.raises(KeyboardInterrupt), held():
            for number in (signal.SIGINT, 10, signal.SIGCHLD, 10):
                press(number)
            assert not called
        assert sorted(called) == [(10, FrameType), (signal.SIGCHLD, FrameType)]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_is_let_through_is_heard_at_once_and_only_there() -> None:
    steps = []
    with held():
        press()
        with pytest.raises(KeyboardInterrupt), let_through():
            steps.append("not reached: it came before")
        with pytest.raises(KeyboardInterrupt), let_through():
            steps.append(1)
            press()
            steps.append("not reached")
        try:
            with let_through():
                press(signal.SIGTERM)
        except SystemExit:
            with contextlib.suppress(KeyboardInterrupt):  # one that was let through is over with what it raised
                press()
                steps.append(2)
        with pytest.raises(KeyboardInterrupt), let_through():
            steps.append("not reached")
        with pytest.raises(KeyboardInterrupt), let_through():
            with held(), contextlib.suppress(KeyboardInterrupt):
                press()
                steps.append(3)  # it is held again: the collector may end an iterator anywhere
            steps.append("not reached: a wait comes here")
        with let_through():
            steps.append(4)
    assert steps == [1, 2, 3, 4]
    with let_through():
        press_now()


def test_what_hangs_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), held():
        monkeypatch.setattr(signals, "LONGEST", 0)
        press()
        pytest.fail("it was not heard")


def test_other_threads_hold_nothing_back() -> None:
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        with held(), let_through():
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(10)
    press_now()
    go.set()
    thread.join()


def test_handlers_that_are_none_of_pythons_are_left_alone() -> None:
    with held():
        for number in (signal.SIGUSR1, signal.SIGPIPE):
            assert signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN)


def child(what: Callable[[], int]) -> int:
    """What this gives in a forked child."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(what())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_holds_nothing_back() -> None:
    def hears() -> int:
        assert {number: signal.getsignal(number) for number in THEIRS} == THEIRS
        try:
            press()
        except KeyboardInterrupt:
            return 7
        return 8

    with pytest.raises(KeyboardInterrupt), held():
        press()
        assert child(hears) == 7
        assert run_in_thread(lambda: child(hears)) == 7, "the thread that forks is the child's main one"
        with let_through():
            pytest.fail("what came is still to be heard here")


def run_in_thread(what: Callable[[], Any]) -> Any:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(what()))
    thread.start()
    thread.join()
    return got[0]


class Dying:
    """Is interrupted while it dies."""

    def __init__(self) -> None:
        self.other = weakref.ref(self, lambda _: [None for _ in range(3)])  # Python's code, as it dies

    @in_del
    def __del__(self) -> None:
        with held(), let_through():
            press()


@pytest.fixture
def in_vain(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was raised where nobody hears it."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()  # hypothesis has one, in which Python drops what a handler raises
    yield lost
    gc.callbacks[:] = callbacks


def test_what_comes_while_an_object_dies_is_heard_behind_it(in_vain: list[Any]) -> None:
    dying: Any = Dying()
    watched = weakref.WeakSet([dying])
    with pytest.raises(KeyboardInterrupt):
        del dying
        for _ in range(9):
            pass
    dying = Dying()
    dying.itself = dying
    with pytest.raises(KeyboardInterrupt):
        del dying
        gc.collect()
        for _ in range(9):
            pass
    dying = Dying()
    with pytest.raises(KeyboardInterrupt), held():
        del dying
        assert not watched
    assert not in_vain


def at_each_line(do: Callable[[], None], what: Callable[[], object]) -> Iterator[AtLine]:
    """Do something at the first line of what shmloader does, then at the second, and so on; one after each."""
    for line in itertools.count(1):
        with AtLine(line, do, (signals.__file__,)) as reached, contextlib.suppress(KeyboardInterrupt):
            what()
        if reached.lines < line:
            return
        yield reached


def test_ctrl_c_at_any_line_is_heard_once_and_leaves_nothing() -> None:
    raised = 0

    def hold() -> None:
        nonlocal raised
        try:
            with held():
                with contextlib.suppress(KeyboardInterrupt), held():
                    pass
                with let_through():
                    pass
        except KeyboardInterrupt:
            raised += 1
            raise

    steps = 0
    for _ in at_each_line(press, hold):
        steps += 1
        assert raised == steps
        assert signals._hold is None or not signals._hold.depth
        with held():
            pass
        assert {number: signal.getsignal(number) for number in THEIRS} == THEIRS, steps
    assert steps > 40


def test_the_collector_at_any_line_holds_back_and_leaves_what_it_found() -> None:
    """It may end an iterator, whose end is a held() in whatever is half done."""
    held_back: list[bool] = []

    def collect() -> None:
        with held():
            held_back.append(all(signal.getsignal(number) is not handler for number, handler in THEIRS.items()))

    def hold() -> None:
        with pytest.raises(KeyboardInterrupt), held():
            press()
            with held():
                pass
            held_back.append(True)

    steps = 0
    for steps, _ in enumerate(at_each_line(collect, hold), 1):
        assert len(held_back) == 2 * steps and all(held_back), steps
        assert signals._hold is None
        assert {number: signal.getsignal(number) for number in THEIRS} == THEIRS, steps
    assert steps > 100
