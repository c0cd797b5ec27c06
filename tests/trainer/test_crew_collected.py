"""An iterator of a crew that is collected, in whatever thread, waits for no thread that changes the workers."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import shmloader
from shmloader import Crew


def _loader(crew: Crew) -> Any:
    return shmloader.DataLoader(torch.arange(40), batch_size=4, crew=crew, on_worker_death="respawn")


def _await_no_member(crew: Crew) -> None:
    end = time.monotonic() + 20
    while crew._workers.signals.members and time.monotonic() < end:
        time.sleep(0.01)
    assert not crew._workers.signals.members


@contextlib.contextmanager
def _held_in_a_thread(crew: Crew) -> Iterator[None]:
    """Another thread holds the crew's lock, and would give it up after 10 seconds."""
    inside, leave, waited = threading.Event(), threading.Event(), []

    def hold() -> None:
        with crew._workers.changing:
            inside.set()
            waited.append(leave.wait(10))

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        yield
        assert not waited
        assert crew._workers.signals.members
    finally:
        leave.set()
        thread.join()


@pytest.mark.timeout(60)
def test_in_a_thread_whose_start_another_one_awaits_with_the_crews_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A death has the thread started again that watches the workers.  It collects before it has told that it runs."""
    main, tell, collected = threading.get_ident(), threading.Event.set, []

    def collect_first(event: threading.Event) -> None:
        if threading.get_ident() != main and not collected:
            collected.append(event)
            gc.collect()
        tell(event)

    gc.disable()
    try:
        with Crew(2, multiprocessing_context="fork") as crew:
            goes_on, dropped = iter(_loader(crew)), iter(_loader(crew))
            assert next(goes_on).tolist() == next(dropped).tolist()
            dropped.itself = dropped
            del dropped
            monkeypatch.setattr(threading.Event, "set", collect_first)
            os.kill(crew._workers.workers[0].pid, signal.SIGKILL)
            assert len(list(goes_on)) == 9
            assert collected
            _await_no_member(crew)
    finally:
        gc.enable()


def test_while_another_thread_holds_the_crews_lock() -> None:
    with Crew(1, multiprocessing_context="fork") as crew:
        iterator = iter(_loader(crew))
        next(iterator)
        with _held_in_a_thread(crew):
            del iterator
        _await_no_member(crew)


class RaisedError(Exception):
    """A handler's."""


def test_a_signal_that_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler runs when the iterator's attributes are gone, and another thread needs them still."""
    start = threading.Thread.start

    def handle(number: int, frame: Any) -> None:
        raise RaisedError

    def signalled_start(thread: threading.Thread) -> None:
        if thread.name == "shmloader_end":
            signal.raise_signal(signal.SIGUSR1)
        start(thread)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with Crew(1, multiprocessing_context="fork") as crew:
            iterator = iter(_loader(crew))
            next(iterator)
            with _held_in_a_thread(crew):
                monkeypatch.setattr(threading.Thread, "start", signalled_start)
                with pytest.raises(RaisedError):
                    del iterator
                    time.sleep(1)
            _await_no_member(crew)
            assert len(list(_loader(crew))) == 10
    finally:
        signal.signal(signal.SIGUSR1, before)
