"""A thread that is ahead: ended by a flag, waited for however long it takes, and safe from Ctrl-C at any line."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from at_line import AtLine
from gpu_double import installed
from scripts import run_script

import shmloader
from shmloader.device import prefetch as prefetch_module
from shmloader.device import prefetch_thread, to_device
from shmloader.device.prefetch import Prefetcher

FILES = (prefetch_module.__file__, prefetch_thread.__file__)


class Source:
    """An iterator as those below are, without workers; it says when two are in it at once."""

    _num_workers = 0

    def __init__(self, length: int = 8) -> None:
        self.length, self.at, self.resets, self.inside, self.wrong = length, 0, 0, 0, ""
        self.before_next: Callable[[], None] = lambda: None

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return self.length

    def __next__(self) -> int:
        self._enter()
        try:
            self.before_next()
            if self.at == self.length:
                raise StopIteration
            self.at += 1
            return self.at - 1
        finally:
            self.inside -= 1

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._enter()
        self.at = 0
        self.resets += 1
        self.inside -= 1

    def _enter(self) -> None:
        self.inside += 1
        if self.inside > 1:
            self.wrong = "two threads are in the source"


class Stage:
    def __init__(self, send: Callable[[Any], Any] = lambda batch: batch) -> None:
        self.send = send

    def begin(self) -> None:
        pass

    def arrive(self, sent: Any) -> Any:
        return sent


class Loader:
    num_workers, dataset = 0, ()

    def __init__(self, persistent_workers: bool) -> None:
        self.persistent_workers = persistent_workers


LOADER, ONE_EPOCH = Loader(True), Loader(False)


def prefetched(source: Source, stage: Stage | None = None, depth: int = 2) -> Any:
    return Prefetcher(LOADER, source, stage or Stage(), depth)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_module, "PATIENCE", 0.1)


class Gate:
    """A function that lets a batch through, or not before it is opened."""

    def __init__(self, number: int) -> None:
        self.number, self.reached, self.open = number, threading.Event(), threading.Event()

    def __call__(self, batch: Any) -> Any:
        if int(batch) == self.number:
            self.reached.set()
            assert self.open.wait(30)
        return batch


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Have a KeyboardInterrupt be raised in here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have it ignored
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # in here, because a busy machine may take longer than that to get here
            yield
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------------------------------- the flag, the wait


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_after_one_whose_function_takes_longer_than_any_patience(
    monkeypatch: pytest.MonkeyPatch, gpu: Any, impatient: None, workers: int
) -> None:
    gpu()
    monkeypatch.setattr(to_device, "AHEAD", 8)
    gate = Gate(3)
    loader = shmloader.DataLoader(
        list(range(20)),
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        device="cuda",
        on_device=gate,
    )
    iterator = iter(loader)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    assert gate.reached.wait(30)
    threading.Timer(0.7, gate.open.set).start()
    assert [int(batch) for batch in loader] == list(range(20))
    assert [int(batch) for batch in loader] == list(range(20))
    if not workers:
        iterator.close()
    loader.close()


def test_a_reset_waits_for_the_thread_and_burns_no_cpu(impatient: None) -> None:
    source, gate = Source(), Gate(3)
    iterator = prefetched(source, Stage(gate))
    assert [next(iterator) for _ in range(2)] == [0, 1] and gate.reached.wait(30)
    threading.Timer(0.7, gate.open.set).start()
    began = time.thread_time()
    iterator._reset(LOADER)
    assert gate.open.is_set() and time.thread_time() - began < 0.2
    assert list(iterator) == list(range(8)) and not source.wrong
    iterator.close()


def test_a_stopped_thread_takes_nothing_more(impatient: None) -> None:
    """However many batches it might still make."""
    source, gate = Source(100), Gate(0)
    iterator = prefetched(source, Stage(gate), depth=50)
    assert gate.reached.wait(30)
    with pytest.warns(RuntimeWarning, match="has not ended in 0.1 s: it is still in on_device"):
        iterator.close()
    gate.open.set()
    iterator._pin_memory_thread.join(30)
    assert source.at == 1


# ------------------------------------------------------------------------------------------------- closing


@pytest.mark.filterwarnings("error")
def test_closing_under_a_function_that_does_not_return(gpu: Any, impatient: None) -> None:
    gpu()
    gate = Gate(2)
    loader = shmloader.DataLoader(list(range(20)), batch_size=None, num_workers=2, device="cuda", on_device=gate)
    iterator: Any = iter(loader)
    assert [int(next(iterator)) for _ in range(2)] == [0, 1] and gate.reached.wait(30)
    workers, thread = list(iterator._workers), iterator._pin_memory_thread
    with pytest.warns(RuntimeWarning, match=r"still in on_device.* The workers have ended, and their memory is free"):
        iterator.close()
    assert not any(worker.is_alive() for worker in workers) and thread.is_alive()
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)
    gate.open.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_ctrl_c_while_closing_still_ends_the_workers(gpu: Any) -> None:
    gpu()
    gate = Gate(1)
    loader = shmloader.DataLoader(list(range(9)), batch_size=None, num_workers=1, device="cuda", on_device=gate)
    iterator: Any = iter(loader)
    assert int(next(iterator)) == 0 and gate.reached.wait(30)
    (worker,) = iterator._workers
    with interrupted_after(0.3):
        iterator.close()
    assert not worker.is_alive()
    gate.open.set()
    iterator._pin_memory_thread.join(30)


@pytest.mark.long
def test_exit_waits_once_for_functions_that_never_return() -> None:
    ran = run_script(
        """
        import atexit, time
        atexit.register(lambda: print("waited once", 2 < time.monotonic() - began < 7))
        import threading
        import shmloader, shmloader.device.accelerator, shmloader.device.prefetch
        from gpu_double import DoubleGpu
        double = DoubleGpu()
        shmloader.device.accelerator.find = lambda device=None: double
        shmloader.device.accelerator.kind = lambda: "cuda"
        shmloader.device.accelerator.count = lambda: 1
        shmloader.device.prefetch.PATIENCE = 3.0
        entered = threading.Semaphore(0)

        def never(batch):
            entered.release()
            threading.Event().wait()

        def loader(workers):
            return shmloader.DataLoader(range(9), num_workers=workers, device="cuda", on_device=never)

        iterators = [iter(loader(workers)) for workers in (0, 0, 1, 1)]
        for _ in iterators:
            entered.acquire()
        began = time.monotonic()
        """,
        fresh=True,
    )
    assert (ran.status, ran.out) == (0, "waited once True\n"), ran.err


# ------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("depth", [1, 3])
def test_several_threads_in_next(depth: int) -> None:
    """Each batch goes to one of them, and each finds the end."""
    for _ in range(20):
        iterator = prefetched(Source(200), depth=depth)
        got: list[list[int]] = [[] for _ in range(4)]
        threads = [threading.Thread(target=mine.extend, args=(iterator,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert all(mine == sorted(mine) for mine in got)
        assert sorted(itertools.chain(*got)) == list(range(200))
        iterator.close()


# ------------------------------------------------------------------------------------------------- Ctrl-C at any line


def test_in_the_middle_of_a_line() -> None:
    """Interrupts of the real kind, some thousand a second: what comes is put down by the call that fetches it."""
    iterator, got, came, armed = prefetched(Source(10**6)), [], 0, False

    def interrupt(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    end = time.monotonic() + 0.5
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.00007)
        while time.monotonic() < end:
            try:
                armed = True
                while True:
                    got.extend(itertools.islice(iterator, 100))
            except KeyboardInterrupt:
                came += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    iterator.close()
    assert came > 10 and got == list(range(len(got)))


def press() -> None:
    raise KeyboardInterrupt


def interrupted_at_each_line(act: Callable[[AtLine], None]) -> int:
    """Interrupt something at its first line, then at its second, and so on to its end; returns how many there were."""
    for line in itertools.count(1):
        interrupt = AtLine(line, press, FILES)
        act(interrupt)
        if interrupt.lines < line:
            return line - 1
    return 0


def test_in_a_reset() -> None:
    """It may be done again, and then nothing is missing; the source is never reset under the thread."""

    def act(interrupt: AtLine) -> None:
        source, gate = Source(6), Gate(2)
        iterator = prefetched(source, Stage(gate))
        assert next(iterator) == 0 and gate.reached.wait(30)
        threading.Timer(0.01, gate.open.set).start()
        try:
            with interrupt:
                iterator._reset(LOADER)
        except KeyboardInterrupt:
            assert next(iterator, None) in (None, 0, 1)  # it is at its end, at its beginning, or was not touched
            iterator._reset(LOADER)
        assert list(iterator) == list(range(6)) and not source.wrong
        iterator.close()

    assert interrupted_at_each_line(act) > 30


def test_in_close() -> None:
    """It may be closed again, and either way the thread ends and the workers are ended."""

    def act(interrupt: AtLine) -> None:
        source = Workers(100)
        iterator: Any = prefetch_module.PrefetcherWithWorkers(ONE_EPOCH, source, Stage(), 2)
        thread = iterator._pin_memory_thread
        assert next(iterator) == 0
        with contextlib.suppress(KeyboardInterrupt):
            with interrupt:
                iterator.close()
            assert list(iterator) == []
        iterator.close()
        assert source.ended == 1
        thread.join(30)
        assert not thread.is_alive()

    assert interrupted_at_each_line(act) > 25


class Workers(Source, torch.utils.data.dataloader._MultiProcessingDataLoaderIter):  # type: ignore[misc]
    """With workers, as far as NOTE [ Prefetcher ] is concerned."""

    ended = 0
    _shutdown = False

    def _shutdown_workers(self) -> None:
        if not self._shutdown:
            self._shutdown = True
            self.ended += 1

    def __del__(self) -> None:
        pass
