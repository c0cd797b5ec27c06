"""An iterator whose batches are made ready by a thread that is a few of them ahead.

NOTE [ Ahead ]

    1. The thread asks the iterator below (the source) for batches, in order, hands each to a stage, and puts what that
       gives into a queue.  What is raised on the way goes into the queue at its place, and is raised in the caller.
       It takes a permit first; there are as many as it may be ahead, and each batch that is handed out is one more.
       Both queues sleep in the kernel: nothing polls.
    2. Permits hold back the thread, so at most `depth` batches wait in the queue, whatever they take on the device.
    3. The thread knows the source, the stage and the queues, not the iterator.  So an iterator that is dropped is
       collected, and ends its thread.  A thread lives for one epoch.
    4. To end it: it is told so, it is given a permit, and the source is interrupted where it waits for a batch; then
       it is joined.  Only then the source is closed, for the thread must not be in memory that is unmapped.
    5. For all that torch's iterator has and this one has not (`_workers`, say) the source is asked.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import os
import queue
import threading
import weakref
from types import TracebackType
from typing import Any, NoReturn, Protocol

import torch

from shmloader import _torch
from shmloader._torch import profiler

PATIENCE = 5.0  # seconds that the thread has to end; it may be in a dataset or a function of the user's


class Stage(Protocol):
    """What becomes of a batch on its way."""

    def begin(self) -> None:
        """In the thread, before the first batch."""

    def send(self, batch: Any) -> Any:
        """In the thread: begin what is to be done with a batch, and keep nothing of it."""

    def failed(self) -> bool:
        """In the thread, when something was raised: whether the device has failed for good."""

    def arrive(self, sent: Any) -> Any:
        """In the caller's thread: the batch."""


class _Kind(enum.Enum):
    BATCH, ERROR, END = range(3)


class Ahead:
    """Iterates over a source's batches, `depth` of them ahead; see NOTE [ Ahead ].

    Args:
        loader: whose iterator this is.
        source: the iterator below.
        stage: what is done with its batches.
        depth: batches that may be ready and not handed out yet; 0: there is no thread, and no batch is ahead.
    """

    _thread: threading.Thread | None = None
    _shutdown = False

    def __init__(self, loader: Any, source: Any, stage: Stage, depth: int) -> None:
        self.loader = weakref.ref(loader)
        self._source = source
        self._stage = stage
        self._depth = depth
        self._owner = os.getpid()
        self._persistent_workers = loader.persistent_workers
        self._profile_name = f"enumerate(DataLoader)#{type(self).__name__}.__next__"
        _alive.add(self)
        self._start()

    def __getattr__(self, name: str) -> Any:
        if name == "_source":  # there is none before __init__, nor in a copy that is being made
            raise AttributeError(name)
        return getattr(self._source, name)

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._source)

    # ------------------------------------------------------------------------------------------------- an epoch

    def _start(self) -> None:
        self._num_yielded = 0
        self._ended = False
        self._ready: queue.SimpleQueue[tuple[_Kind, Any]] = queue.SimpleQueue()
        self._permits: queue.SimpleQueue[bool] = queue.SimpleQueue()
        for _ in range(self._depth):
            self._permits.put(True)
        if not self._depth:
            return
        arguments = (self._source, self._stage, self._permits, self._ready)
        self._thread = threading.Thread(target=_run, args=arguments, name="shmloader_ahead", daemon=True)
        self._thread.start()
        self._pin_memory_thread = self._thread

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.stop_threads()
        self._source._reset(loader, first_iter)
        self._start()

    def __next__(self) -> Any:
        if not profiler._is_profiler_enabled:
            return self._next_data()
        with profiler.record_function(self._profile_name):
            return self._next_data()

    def _next_data(self) -> Any:
        if self._ended:
            raise StopIteration
        if not self._depth:
            batch = self._stage.arrive(self._stage.send(next(self._source)))
            self._num_yielded += 1
            return batch
        try:
            kind, sent = self._ready.get()
        except RuntimeError as error:  # torch's SIGCHLD handler may run in there
            self._explain(error)
        if kind is _Kind.END:
            self._ended = True
            if not self._persistent_workers:
                self._shutdown_workers()
            raise StopIteration
        self._permits.put(True)
        if kind is _Kind.ERROR:
            try:
                raise sent
            finally:
                del sent  # it holds this frame, by its traceback
        batch = self._stage.arrive(sent)
        self._num_yielded += 1
        return batch

    def _explain(self, error: RuntimeError) -> NoReturn:
        explain = getattr(self._source, "explain", None)
        if explain is not None:
            explain(error)
        raise error

    # ------------------------------------------------------------------------------------------------- the end

    def stop_threads(self) -> None:
        """End the thread; what is ready is dropped, and the iterator is at its end."""
        thread, self._thread = self._thread, None
        self._ended = True
        if thread is None or self._owner != os.getpid():
            return
        self._permits.put(False)
        interrupt = getattr(self._source, "interrupt", None)
        if interrupt is not None and thread.is_alive():
            interrupt()
        thread.join(PATIENCE)
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put((_Kind.END, None))  # for another thread that is in next()

    def _shutdown_workers(self) -> None:
        """See NOTE [ Ahead ], and NOTE [ Shutdown ] in iterator.py."""
        if self._shutdown or _torch.is_exiting() or self._owner != os.getpid():
            return
        if threading.current_thread() is self._thread:
            # The collector runs in it, in the middle of whatever it does with the source's memory.
            threading.Thread(target=self._shutdown_workers, name="shmloader_end").start()
            return
        self._shutdown = True
        self.stop_threads()
        end_of_source = getattr(self._source, "_shutdown_workers", None)
        if end_of_source is not None:
            end_of_source()

    def close(self) -> None:
        """End the thread and the workers and give the memory back.  Batches already delivered stay as they are.

        Closing twice is harmless; a closed iterator is at its end.
        """
        self._shutdown_workers()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if "_source" in self.__dict__:
            self._shutdown_workers()


class AheadOfWorkers(Ahead, _torch._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """For frameworks that know an iterator with workers by its class."""


class AheadOfNone(Ahead, _torch._SingleProcessDataLoaderIter):  # type: ignore[misc]
    """The same, of one without."""


def ahead(loader: Any, source: Any, stage: Stage, depth: int) -> Ahead:
    """An iterator that is ahead of the source, of the class that goes with it."""
    return (AheadOfWorkers if loader.num_workers else AheadOfNone)(loader, source, stage, depth)


def _run(source: Any, stage: Stage, permits: queue.SimpleQueue[bool], ready: queue.SimpleQueue[Any]) -> None:
    if source._num_workers:
        torch.set_num_threads(1)  # of this thread: a copy is not to take all cores
    try:
        stage.begin()
        while permits.get():
            try:
                ready.put((_Kind.BATCH, stage.send(next(source))))
            except StopIteration:
                break
            except BaseException as error:
                ready.put((_Kind.ERROR, error))
                if stage.failed():  # whatever it allocates on the device from here on may end the process
                    break
    except BaseException as error:
        ready.put((_Kind.ERROR, error))
    ready.put((_Kind.END, None))


_alive: weakref.WeakSet[Any] = weakref.WeakSet()


def stop_at_exit(iterator: Any) -> None:
    """Have stop_threads() of an iterator called before the interpreter goes down: NOTE [ Shutdown ], 6."""
    _alive.add(iterator)


@atexit.register
def _stop_all() -> None:
    for iterator in list(_alive):
        iterator.stop_threads()
