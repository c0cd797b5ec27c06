"""A signal's handler raises in a job that attached: the job goes on, and so do the others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from served import server_of

import shmloader
from shmloader.readers import iterator
from shmloader.readers.attachment import Attachment

EPOCH = [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a server in another process."""
    name = f"broken off {os.getpid()}"
    with server_of(8, name):
        yield name


def _lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def _raises_once(monkeypatch: pytest.MonkeyPatch, owner: Any, called: str, after: bool = False) -> None:
    """Have one call raise as a handler of Ctrl-C does, before it does anything or after all."""
    real = getattr(owner, called)

    def raising(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, called, real)
        if after:
            real(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, called, raising)


def test_iter_that_is_broken_off_loses_no_epoch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with shmloader.attach(name) as batches:
        assert _lists(batches) == EPOCH
        before = batches.state_dict()
        _raises_once(monkeypatch, iterator, "epoch_from")
        with pytest.raises(KeyboardInterrupt):
            iter(batches)
        assert batches.state_dict() == before
        first = iter(batches)
        assert batches.state_dict() == before
        assert _lists(first) == _lists(batches) == EPOCH


def test_close_that_is_broken_off_is_finished_by_the_next_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = shmloader.attach(name)
    assert next(iter(batches)).tolist() == [0, 1]
    _raises_once(monkeypatch, threading, "current_thread")
    with pytest.raises(KeyboardInterrupt):
        batches.close()
    batches.close()
    with shmloader.attach(name) as others:  # it would wait for the one that was closed
        assert _lists(others)[-1] == EPOCH[-1]
        assert _lists(others) == EPOCH


def test_close_of_an_iterator_that_is_broken_off_is_finished_by_the_next_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shmloader.attach(name) as batches:
        one = iter(batches)
        assert next(one).tolist() == [0, 1]
        _raises_once(monkeypatch, Attachment, "leave")
        with pytest.raises(KeyboardInterrupt):
            one.close()
        one.close()
        with shmloader.attach(name) as others:
            assert _lists(others)[-1] == EPOCH[-1]
            assert _lists(others) == EPOCH


def test_attach_that_is_broken_off_behind_the_start_of_its_thread_leaves_no_thread(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    before = threading.active_count()
    real = Attachment.__init__

    def made(self: Attachment, *given: Any) -> None:
        _raises_once(monkeypatch, threading.Thread, "start", after=True)
        real(self, *given)

    monkeypatch.setattr(Attachment, "__init__", made)
    batches = shmloader.attach(name)
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):
            iter(batches)
    monkeypatch.setattr(Attachment, "__init__", real)
    while threading.active_count() > before:
        time.sleep(0.01)
    assert not errors
    assert _lists(batches)[-1] == EPOCH[-1]
    batches.close()
