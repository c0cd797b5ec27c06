"""What runs samples at the same time: coroutines on an event loop, or threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

import torch

from shmloader.attributes import attribute
from shmloader.system import call_stacks
from shmloader.system.signals import held, let_through
from shmloader.system.thread_targets import ThreadTarget
from shmloader.worker.sample_generators import AT_HAND, Draws

__all__ = ["PATIENCE", "Coroutines", "Runner", "Threads", "awaited", "running_loop"]

Get = Callable[[Any], Any]

PATIENCE = 1.0  # seconds that coroutines have to end after they were cancelled


class Runner(Protocol):
    """Runs calls of a dataset side by side."""

    def start(self, get: Get, index: Any, draws: Draws) -> Any:
        """Begin to make a sample; returns what result() and cancel() take."""

    def result(self, running: Any) -> Any:
        """Wait for a sample."""

    def cancel(self, running: Any) -> None:
        """End a sample that is not needed any longer."""

    def close(self) -> None:
        """End all samples under way."""


class Threads:
    """Runs samples in threads of this process.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        # torch computes in one thread in each of them, as it does in a worker's main thread
        self._pool = ThreadPoolExecutor(count, "shmloader sample", torch.set_num_threads, (1,))
        self._dropped: weakref.WeakSet[Future[Any]] = weakref.WeakSet()  # under way; their threads keep them alive

    def start(self, get: Get, index: Any, draws: Draws) -> Future[Any]:
        return self._pool.submit(_called, get, index, draws)

    def result(self, running: Future[Any]) -> Any:
        return running.result()

    def cancel(self, running: Future[Any]) -> None:
        if not running.cancel():
            self._dropped.add(running)

    def stand_still(self, batches: list[list[tuple[Future[Any], Draws]]]) -> None:
        """Wait until no sample is under way: for as long as the slowest of those that have begun takes.

        Args:
            batches: The samples of each batch, as they were started one after another.  Those that have not begun are
                cancelled, and taken off the end of each list.
        """
        for batch in batches:
            while batch and batch[-1][0].cancel():
                batch.pop()
        wait([*self._dropped, *(running for batch in batches for running, _ in batch)])

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _called(get: Get, index: Any, draws: Draws) -> Any:
    before = AT_HAND.set(draws)
    try:
        return get(index)
    finally:
        AT_HAND.reset(before)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that this thread runs."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


class Coroutines:
    """Runs samples on an event loop of its own.  The loop runs only while result() waits.

    Args:
        dataset: The dataset.  If it has an `aclose()`, close() awaits it.
        loop: The event loop; None: a new one.
        made: Returns a sample's coroutine; None: awaited().
    """

    def __init__(
        self,
        dataset: Any,
        loop: asyncio.AbstractEventLoop | None = None,
        made: Callable[[Get, Any, Draws], Coroutine[Any, Any, Any]] | None = None,
    ) -> None:
        self.loop = asyncio.new_event_loop() if loop is None else loop
        self._made = awaited if made is None else made
        self._end = attribute(dataset, "aclose")
        self._under_way: set[asyncio.Task[Any]] = set()
        self._is_left = False  # whether the loop shall stop, because the one that waited for a sample was interrupted
        self._beside: ThreadTarget | None = None  # runs the loop until it has seen that
        self._owner = os.getpid()
        call_stacks.FURTHER.append(self._stacks)

    def start(self, get: Get, index: Any, draws: Draws) -> asyncio.Task[Any]:
        task = self.loop.create_task(self._made(get, index, draws), name=f"sample {index!r:.50}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def result(self, task: asyncio.Task[Any]) -> Any:
        if not task.done():
            self._run(task)
        if task.cancelled():  # asyncio raises a CancelledError for it, which is no Exception and would end the worker
            raise RuntimeError(
                f"{task.get_name()} was cancelled. Its own code did that, or a library that it called: shmloader "
                "cancels no sample that it waits for. Look for cancel() and for scopes that time out."
            )
        return task.result()

    def cancel(self, task: asyncio.Task[Any]) -> None:
        if not task.cancel() and not task.cancelled():
            task.exception()  # otherwise asyncio logs that the exception was never retrieved
        else:
            task.add_done_callback(_forget)

    def close(self) -> None:
        """Cancel all samples under way, and wait for them for PATIENCE seconds at most."""
        if self.loop.is_closed() or self._owner != os.getpid():
            return
        with contextlib.suppress(ValueError):
            call_stacks.FURTHER.remove(self._stacks)
        for task in [*self._under_way]:
            self.cancel(task)
        ended = self.loop.create_task(self._ended([*self._under_way]))
        try:
            self._run(ended)
        finally:
            self.cancel(ended)
            if not self.loop.is_running():  # a thread may, if a second Ctrl-C broke off the wait for it
                self.loop.close()

    async def _ended(self, tasks: list[asyncio.Task[Any]]) -> None:
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)
        if inspect.iscoroutinefunction(self._end):
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._end(), PATIENCE)
        await self.loop.shutdown_asyncgens()

    def settle(self, patience: float = -1) -> bool:
        """Wait until no thread runs the loop any more; returns whether that is so.

        Args:
            patience: For how many seconds at most; -1: without an end.
        """
        if self._beside is not None:
            with let_through():
                ended = self._beside.wait(patience)
            if not ended:
                return False
            self._beside = None
        return True

    def _run(self, task: asyncio.Task[Any]) -> None:
        """Run the loop until a task is done; in another thread if this one runs another loop, as in a notebook."""
        self._is_left = False
        if running_loop() is None:
            self._run_here(task)
            return
        beside = ThreadTarget(self._run_here)
        try:
            with held():  # an interrupted start() would leave a thread that waits for ever
                threading.Thread(target=beside, args=(task,), name="shmloader samples").start()
            with let_through():
                beside.wait()
        except BaseException:  # Ctrl-C: the loop must not run on when the caller continues
            if not beside.prevent():
                self._beside = beside  # a further Ctrl-C may break off the wait
                self._is_left = True
                self.loop.call_soon_threadsafe(self.loop.stop)
                self.settle()
            raise

    def _run_here(self, task: asyncio.Task[Any]) -> None:
        """Run the loop until a task is done, or left.

        The loop may stop before that, if an earlier run was interrupted when its task had just asked for the stop.
        """
        task.add_done_callback(self._stop)
        try:
            while not task.done() and not self._is_left:
                self.loop.run_forever()
        finally:
            task.remove_done_callback(self._stop)

    def _stop(self, task: asyncio.Task[Any]) -> None:
        self.loop.stop()

    def _stacks(self) -> str:
        """Where each sample under way waits, as faulthandler writes it."""
        parts = []
        for task in [*self._under_way]:
            parts.append(f"{task.get_name()} waits (most recent call first):")
            frames: list[str] = []
            awaited: Any = task.get_coro()
            while awaited is not None:
                frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
                if frame is not None and frame.f_code.co_filename != __file__:
                    code = frame.f_code
                    frames.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
                awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
            parts += reversed(frames)
        return "".join(f"{line}\n" for line in parts)


async def awaited(get: Get, index: Any, draws: Draws) -> Any:
    """Make a sample."""
    AT_HAND.set(draws)  # in this task's own context
    sample = get(index)
    return await sample if inspect.isawaitable(sample) else sample


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
