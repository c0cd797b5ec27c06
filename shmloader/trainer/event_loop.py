"""The event loop of a loader without workers whose samples are coroutines.

NOTE [ A loader's event loop ]

    1. All iterators of a loader share one loop, because a dataset's connections work only on the loop that opened them.
       The loop ends when neither the loader nor any of its iterators is left.  The end of the loader alone is not
       enough, because a program may iterate over a loader that it does not keep.  After close(), the next batch begins
       another loop.
    2. Threads take turns on it.  A turn lasts for all samples of a batch.  In its turn a thread also begins an epoch
       and asks the sampler for indices, because both may draw from torch's generator.  If a thread drew from it during
       another thread's turn, the loader would blame a sample of that other thread: NOTE [ Side by side ], 3.
    3. If the caller's thread runs a loop already, as in a notebook, ours runs in a thread that ends before next()
       returns.  After a Ctrl-C that thread stops the loop at the next callback, and next() waits until it has ended.
       If a second Ctrl-C breaks off this wait, the following next() waits for the end of that thread first.
    4. Otherwise the loop runs in the caller's thread, and if that is the main one, a signal's handler can raise at any
       line of it.  In a callback of asyncio that would do harm.  asyncio would log the handler's Exception, and drop
       it.  The callback would be lost too, and whoever waits for it would wait for ever.  So handlers are held back
       during a turn, except in two places.  While the loop waits, handlers run, and next() raises their exceptions.  In
       the steps of a sample's coroutine, their exceptions are raised in the sample, because a dataset may limit a
       sample's time by a timer.
    5. The collector may end the loop, in any line of any code.  Nobody could catch what a handler raises there, so
       handlers are held back meanwhile: held_in_del().
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import selectors
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from shmloader.system.by_identity import ByIdentity
from shmloader.system.own_lock import OwnLock
from shmloader.system.signals import held, held_in_del, let_through
from shmloader.worker.runners import PATIENCE, Coroutines, awaited, running_loop
from shmloader.worker.sample_generators import Draws

__all__ = ["EventLoop", "close_loop", "leave_loop", "loop_of"]

Get = Callable[[Any], Any]


class EventLoop:
    """Runs samples of a loader's dataset, a batch at a time.

    It holds the dataset from the first batch to close().  A dataset may hold its loader.
    """

    def __init__(self) -> None:
        self._coroutines: Coroutines | None = None
        self._turn = OwnLock()
        _living.add(self)

    @property
    def turn(self) -> threading.RLock:
        """What a thread holds while it makes samples, or draws: samples would seem to have drawn that."""
        if self._coroutines is not None and running_loop() is self._coroutines.loop:
            raise RuntimeError("a sample iterates over the loader that makes it, whose event loop runs already")
        return self._turn.here

    def in_turn(self, dataset: Any, make: Callable[[Any], Any], task: Any) -> Any:
        """Make the samples of a batch.

        Args:
            dataset: The loader's.
            make: Makes them, and calls start(), result() and cancel() for that.
            task: Its argument.
        """
        with self.turn, held():
            if self._coroutines is None:
                self._coroutines = Coroutines(dataset, *_new_loop())
            self._coroutines.settle()
            return make(task)

    def start(self, get: Get, index: Any, draws: Draws) -> asyncio.Task[Any]:
        assert self._coroutines is not None
        return self._coroutines.start(get, index, draws)

    def result(self, running: asyncio.Task[Any]) -> Any:
        assert self._coroutines is not None
        return self._coroutines.result(running)

    def cancel(self, running: asyncio.Task[Any]) -> None:
        assert self._coroutines is not None
        self._coroutines.cancel(running)

    def close(self) -> None:
        """End the loop; not if another thread runs it for longer than PATIENCE."""
        turn = self._turn.here
        with held():
            if not turn.acquire(timeout=PATIENCE):
                return
            try:
                found = self._coroutines
                if found is not None and found.settle(PATIENCE):
                    self._coroutines = None
                    found.close()
            finally:
                turn.release()

    def forget(self) -> None:
        """In a forked process: leave the loop to the parent."""
        if self._coroutines is not None:
            _of_parents.append(self._coroutines)
        self._coroutines = None

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            with held_in_del(self):
                self.close()


# ------------------------------------------------------------------------------------ where signals' handlers may raise


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        with let_through():
            return super().select(timeout)


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that lets signals' handlers through, and gets what they raise."""

    def __init__(self, get: Get, index: Any, draws: Draws) -> None:
        self._made = awaited(get, index, draws)

    def send(self, value: Any) -> Any:
        return self._step(self._made.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._made.throw, *error)

    def close(self) -> None:
        self._made.close()

    def __await__(self) -> Any:
        return self._made.__await__()

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with let_through():
                return step(*arguments)
        except BaseException as error:
            if inspect.getcoroutinestate(self._made) == inspect.CORO_CLOSED:
                raise
            return self._made.throw(error)  # a handler raised just before the step, or after it


def _new_loop() -> tuple[asyncio.AbstractEventLoop, Callable[..., Coroutine[Any, Any, Any]]]:
    """An event loop, and what makes the coroutine of a sample for it."""
    loop = asyncio.new_event_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        loop.close()
        loop = type(loop)(_Selector())
    return loop, _Steps


# --------------------------------------------------------------------------------------------------------- whose it is

_loops: ByIdentity[EventLoop] = ByIdentity()  # see NOTE [ Place ], 2
_living: weakref.WeakSet[EventLoop] = weakref.WeakSet()
_of_parents: list[Coroutines] = []  # never collected: to close one would change what the parent's selector watches


def loop_of(loader: Any) -> EventLoop:
    """The event loop of a loader without workers."""
    return _loops.setdefault(loader, EventLoop())


def close_loop(loader: Any) -> None:
    """End the event loop of a loader without workers, if it has one."""
    found = _loops.get(loader)
    if found is not None:
        found.close()


def leave_loop(loader: Any) -> None:
    """In a loader's __del__(): it holds its event loop no longer.  A callback of weak references is too late for that,
    because exceptions are dropped in the callbacks that come after it."""
    if loader in _loops:
        with held_in_del(loader):
            _loops.pop(loader)


def _at_exit() -> None:
    for each in [*_living]:
        with contextlib.suppress(Exception):
            each.close()


def _in_child() -> None:
    for each in [*_living]:
        each.forget()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
