"""A signal's handler raises in a job that attached: the job goes on, and so do the others."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from served import server_of

import shmloader
from shmloader.readers import iterator
from shmloader.readers.attachment import Attachment
from shmloader.readers.wire import Wire

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


class _Raises:
    """A lock whose release raises once, as a handler of Ctrl-C does."""

    def __init__(self, lock: Any) -> None:
        self._lock, self._raised = lock, False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._raised:
            self._raised = True
            raise KeyboardInterrupt


def test_iter_that_is_broken_off_behind_the_beginning_gives_that_epoch_the_next_time(name: str) -> None:
    with shmloader.attach(name) as batches:
        assert _lists(batches) == EPOCH
        number = batches.state_dict()["epoch"]
        batches._beginning = _Raises(batches._beginning)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            iter(batches)
        one = iter(batches)
        assert one.epoch.number == number and _lists(one) == EPOCH
        iter(batches)
        two = iter(batches)  # both were returned, so this is one more
        assert two.epoch.number == number + 2 and _lists(two) == EPOCH


def test_iter_that_is_broken_off_behind_the_beginning_keeps_the_loaded_place(name: str) -> None:
    with shmloader.attach(name) as batches:
        assert next(iter(batches)).tolist() == EPOCH[0]
        state = batches.state_dict()
    batches = shmloader.attach(name)
    batches.load_state_dict(state)
    batches._beginning = _Raises(batches._beginning)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        iter(batches)
    assert batches.state_dict() == state
    assert _lists(batches) == EPOCH[1:]
    batches.close()


def test_a_state_counts_no_batch_that_next_has_not_returned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        """The measure of the user's turns, which is called last before next() returns."""

        asked = staticmethod(lambda: None)
        handed_out = staticmethod(lambda: None)

    with shmloader.attach(name) as batches:
        one = iter(batches)
        assert next(one).tolist() == [0, 1]
        before = batches.state_dict()
        one._turns = Interrupted
        _raises_once(monkeypatch, Interrupted, "handed_out")
        with pytest.raises(KeyboardInterrupt):
            next(one)
        assert batches.state_dict() == before
        assert next(one).tolist() == [2, 3]
        assert batches.state_dict()["batch"] == before["batch"] + 1


@pytest.mark.parametrize("after", [False, True])
def test_a_state_counts_no_batch_that_is_on_its_way_to_next(name: str, after: bool) -> None:
    class Interrupted(list[Any]):
        """The thread's hand."""

        def extend(self, batches: Any) -> None:
            if after:
                super().extend(batches)
            one._hand = iterator._Hand()
            one._hand.held = list(self)  # type: ignore[misc]
            raise KeyboardInterrupt

    with shmloader.attach(name) as batches:
        one = iter(batches)
        assert next(one).tolist() == [0, 1]
        before = batches.state_dict()
        one._hand.held = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            next(one)
        assert batches.state_dict() == before
        assert next(one).tolist() == [2, 3]
        assert batches.state_dict()["batch"] == before["batch"] + 1
        assert _lists(one) == EPOCH[2:]


def test_a_timeout_of_a_handler_in_close_is_raised_and_the_server_goes_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TimeoutError is an OSError, and an error of the connection is ignored there."""

    def raises(*_: Any) -> None:
        raise TimeoutError("the handler's")

    send = Wire.send

    def interrupted(self: Wire, *given: Any) -> None:
        monkeypatch.setattr(Wire, "send", send)
        signal.raise_signal(signal.SIGALRM)
        send(self, *given)

    before = signal.signal(signal.SIGALRM, raises)
    try:
        with shmloader.attach(name) as batches, shmloader.attach(name) as others:
            one, other = iter(batches), iter(others)
            next(one)
            monkeypatch.setattr(Wire, "send", interrupted)
            with pytest.raises(TimeoutError, match="the handler's"):
                one.close()
            one.close()
            got = _lists(other) + [batch for _ in range(5) for batch in _lists(others)]
            assert got[-20:] == 5 * EPOCH
    finally:
        signal.signal(signal.SIGALRM, before)


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


class _RaisesOnce:
    """Turns, of which one call raises behind all that it does."""

    def __init__(self, turns: Any, called: str) -> None:
        self._turns, self._called = turns, called

    def __getattr__(self, called: str) -> Any:
        if called != self._called:
            return getattr(self._turns, called)
        self._called = ""

        def raising() -> None:
            getattr(self._turns, called)()
            raise KeyboardInterrupt

        return raising


@pytest.mark.parametrize("called", ["asked", "handed_out"])
def test_next_that_is_broken_off_gives_its_batch_the_next_time(name: str, called: str) -> None:
    with shmloader.attach(name) as batches:
        one = iter(batches)
        assert next(one).tolist() == EPOCH[0]
        one._turns = _RaisesOnce(one._turns, called)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            next(one)
        assert next(one).tolist() == EPOCH[1]
        assert batches.state_dict()["batch"] == 2
        assert one.epoch.reading.delivered.batches == 2
        assert _lists(one) == EPOCH[2:]
        assert _lists(batches) == EPOCH


def test_a_batch_that_was_not_returned_is_dropped_with_its_epoch(name: str) -> None:
    with shmloader.attach(name) as batches:
        one = iter(batches)
        one._turns = _RaisesOnce(one._turns, "handed_out")  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            next(one)
        assert _lists(batches) == EPOCH


def test_a_handler_may_not_call_next_or_iter_while_next_runs(name: str) -> None:
    with shmloader.attach(name) as batches:
        one = iter(batches)
        refused: list[str] = []

        class Handling:
            def asked(self) -> None:
                for call in (next, lambda _: iter(batches)):
                    with pytest.raises(RuntimeError) as caught:
                        call(one)
                    refused.append(str(caught.value))

            def handed_out(self) -> None:
                pass

        turns = one._turns
        one._turns = Handling()  # type: ignore[assignment]
        assert next(one).tolist() == EPOCH[0]
        one._turns = turns
        assert [text.split()[0] for text in refused] == ["next()", "iter()"]
        assert _lists(one) == EPOCH[1:]


def test_close_that_is_broken_off_behind_the_join_is_finished_by_the_next_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = shmloader.attach(name)
    assert next(iter(batches)).tolist() == EPOCH[0]
    _raises_once(monkeypatch, threading.Thread, "join")
    with pytest.raises(KeyboardInterrupt):
        batches.close()
    monkeypatch.setattr(threading.Thread, "join", lambda *_: pytest.fail("joined twice"))
    batches.close()
    monkeypatch.undo()
    with shmloader.attach(name) as others:
        assert _lists(others)[-1] == EPOCH[-1]


def test_threads_that_begin_at_once_attach_once(name: str) -> None:
    for _ in range(3):
        with shmloader.attach(name) as batches:
            ready = threading.Barrier(2)
            threads = [threading.Thread(target=lambda: (ready.wait(), iter(batches))) for _ in range(2)]  # noqa: B023
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert _lists(batches) == EPOCH


def test_an_attached_loader_that_was_not_begun_may_be_pickled(name: str) -> None:
    with pickle.loads(pickle.dumps(shmloader.attach(name))) as batches:
        assert _lists(batches) == EPOCH
