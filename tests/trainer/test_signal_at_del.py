"""A signal's handler raises where a __del__() begins, before its first line: the end is complete nevertheless."""

from __future__ import annotations

import _thread
import functools
import gc
import operator
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Augmented
from interrupts import left_since, present

import shmloader
from shmloader.core.process import in_del
from shmloader.storage.local_files import _Descriptor
from shmloader.system import signals


class RaisedError(TimeoutError):
    """A watchdog's."""


@pytest.fixture(autouse=True)
def lost() -> Iterator[list[Any]]:
    """The handlers of two signals raise; the exceptions that were raised where nobody sees them."""

    def raises(*_: Any) -> None:
        raise RaisedError

    before = [(number, signal.signal(number, raises)) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    before.append((signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)))
    yield _raised
    for number, handler in before:
        signal.signal(number, handler)
    assert signals._hold is None


_raised: list[Any] = []


class _Pressing(weakref.ref[Any]):
    """A weak reference whose callback, in C, makes a signal pending.  So no handler is called before that returns."""

    press: Callable[[], None]


class _Key:
    """Makes signals pending when it dies."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            pressing = _Pressing(self, operator.methodcaller("press"))
            pressing.press = functools.partial(_thread.interrupt_main, number)
            _pressing.append(pressing)


_pressing: list[_Pressing] = []


def _die(dying: list[Any], *numbers: int) -> None:
    """Drop what is in the list when these signals are pending: its __del__() is the next that runs."""
    dying.append(_Key(numbers or (signal.SIGUSR1, signal.SIGUSR2)))
    hook, sys.unraisablehook = sys.unraisablehook, lambda given: _raised.append(given.exc_type)
    try:
        del dying[:]  # the last one dies first
        len(numbers)  # a handler that was held back runs here at the latest
    except RaisedError:
        pass
    finally:
        sys.unraisablehook = hook
        _pressing.clear()


def _begun(**options: Any) -> Any:
    return iter(shmloader.DataLoader(Augmented(8), num_workers=2, batch_size=2, timeout=30, **options))


MAKES: dict[str, Callable[[], Any]] = {
    "an iterator": _begun,
    "an iterator with a stage": lambda: _begun(device="cpu", on_device=lambda batch: batch),
    "an open file": lambda: _Descriptor(__file__),
}


@pytest.mark.parametrize("made", MAKES)
def test_nothing_is_left(made: str, lost: list[Any]) -> None:
    make = MAKES[made]
    _die([make()])  # imports, and what is made once
    before = present()
    for numbers in ((), (signal.SIGUSR1,)):
        dying = [make()]
        if hasattr(dying[0], "__next__"):
            next(dying[0])
        lost.clear()
        _die(dying, *numbers)
        assert RaisedError in lost
        assert not left_since(before)


@pytest.mark.parametrize("error", [SystemExit, RaisedError])
def test_an_end_that_a_handler_breaks_off_is_taken_again(error: type[BaseException]) -> None:
    ended: list[int] = []

    class Interrupted:
        @in_del
        def __del__(self) -> None:
            ended.append(len(ended))
            if ended == [0]:
                raise error

    _die([Interrupted()], signal.SIGWINCH)
    assert ended == [0, 1] and _raised[-1] is error


def test_no_end_runs_the_collector() -> None:
    """On CPython 3.10, a collection while a MemoryError dies ends the process.  Its traceback may hold an iterator."""
    ran: list[str] = []

    def runs(phase: str, info: object) -> None:
        ran.append(phase)

    iterator = _begun()
    next(iterator)
    gc.disable()
    gc.callbacks.append(runs)
    try:
        del iterator
    finally:
        gc.callbacks.remove(runs)
        gc.enable()
    assert not ran
