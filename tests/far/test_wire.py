"""Who speaks to a stand-in's port: strangers, and a far worker that knows the secret and sends what it should not."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same
from engine import Here
from pretended import DATASET, GOOD, PLAN, SECRET, Admitting, Pretending, is_ready, until_gone, words

import shmloader
from shmloader.far import door as door_module
from shmloader.far.door import Door
from shmloader.far.frames import ANSWER, beat
from shmloader.far.link import GREETING, NONCE, PROOF, Link, far_proof, near_proof, nonce
from shmloader.far.maker import _knock
from shmloader.far_workers import FarSession, Ticket


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", 3, 4, SECRET, 60.0)
    yield made
    made.close()
    made.close_note()


def connected(ticket: Ticket) -> socket.socket:
    return socket.create_connection((ticket.host, ticket.port), timeout=60)


def is_refused(sock: socket.socket) -> bool:
    """Read to the end; whether the other end reset the connection, or closed it."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(warnings, "warn", lambda text, *_, **__: texts.append(text))
    return texts


# -------------------------------------------------------------------------------------------------------- strangers


def garbage(sock: socket.socket, ticket: Ticket) -> None:
    sock.sendall(os.urandom(4096))


def wrong_secret(sock: socket.socket, ticket: Ticket) -> None:
    greeting = sock.recv(len(GREETING) + NONCE, socket.MSG_WAITALL)
    mine = nonce()
    sock.sendall(mine + far_proof(b"x" * 32, ticket.number, greeting[len(GREETING) :], mine))


def other_number(sock: socket.socket, ticket: Ticket) -> None:
    greeting = sock.recv(len(GREETING) + NONCE, socket.MSG_WAITALL)
    mine = nonce()
    sock.sendall(mine + far_proof(SECRET, ticket.number + 1, greeting[len(GREETING) :], mine))


def its_own_proof(sock: socket.socket, ticket: Ticket) -> None:
    """The word that the near end would say, which another connection could be made to say."""
    greeting = sock.recv(len(GREETING) + NONCE, socket.MSG_WAITALL)
    mine = nonce()
    sock.sendall(mine + near_proof(SECRET, ticket.number, greeting[len(GREETING) :], mine))


def slow(sock: socket.socket, ticket: Ticket) -> None:
    sock.sendall(b"s")


def dripping(sock: socket.socket, ticket: Ticket) -> None:
    """A byte at a time, each before the patience for the next one ends."""
    with contextlib.suppress(OSError):
        for _ in range(20):
            sock.sendall(b"d")
            time.sleep(0.05)
        raise AssertionError("it was heard for five times the patience")


@pytest.mark.parametrize(
    ("stranger", "why"),
    [
        (garbage, "does not know this loader's secret"),
        (wrong_secret, "does not know this loader's secret"),
        (other_number, "does not know this loader's secret"),
        (its_own_proof, "does not know this loader's secret"),
        (slow, "no sign of life for 0.2 seconds"),
        (dripping, "no sign of life for 0.2 seconds"),
    ],
)
def test_a_stranger_is_refused_and_it_is_said_once(
    door: Door, stranger: Callable[..., None], why: str, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "PATIENCE", 0.2)
    waiting = Admitting(door)
    for _ in range(2):
        with connected(door.ticket) as sock:
            stranger(sock, door.ticket)
            assert is_refused(sock)
    link = _knock(door.ticket)  # the far worker knows the secret, and is let in
    near = waiting.end()
    assert link is not None and near is not None
    link.close()
    near.close()
    assert len(warned) == 1 and why in warned[0] and "far worker 3" in warned[0]


def test_strangers_that_go_hold_up_nobody(door: Door, warned: list[str]) -> None:
    """As scanners of ports do.  With the usual patience of seconds, of which the far worker waits for none."""
    waiting = Admitting(door)
    for said in (b"", b"h" * (NONCE + 3)):
        with connected(door.ticket) as sock:
            sock.sendall(said)
    link, near = _knock(door.ticket), waiting.end()
    assert link is not None and near is not None and not warned
    for each in (link, near):
        each.close()


def test_a_far_worker_does_not_believe_who_does_not_know_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmloader.far.maker.UNREACHABLE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ticket = Ticket("127.0.0.1", listener.getsockname()[1], 0, 1, SECRET)
        shown: list[bytes] = []

        def pretend() -> None:
            for _ in range(2):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(GREETING + nonce())
                    shown.append(sock.recv(NONCE + PROOF, socket.MSG_WAITALL))
                    sock.sendall(b"p" * PROOF)
            listener.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=pretend)
        thread.start()
        assert _knock(ticket) is None
        thread.join()
    assert len(shown) == 2 and SECRET not in shown[0]


def test_a_door_that_is_closed_lets_its_stand_in_leave(door: Door) -> None:
    childs = Door.__new__(Door)  # the stand-in's process has descriptors of its own
    vars(childs).update(vars(door), _listener=door._listener.dup(), _leave=door._leave.dup())
    waiting = Admitting(childs)
    door.close()
    assert waiting.end() is None
    childs._listener.close()
    childs._leave.close()
    assert _knock(door.ticket) is None  # and the far worker knows that the loader is closed


# ------------------------------------------------------------------------------------------------ who knows the secret


def says(**wrong: Any) -> Callable[[Link], None]:
    """An answer that is right but for this."""
    after = wrong.pop("after", words(7, 0, 1, 4) + PLAN + b"\x01\x02\x03\x04")

    def speak(link: Link) -> None:
        is_ready(link)
        link.send(ANSWER.pack(*GOOD._replace(**wrong)), after)
        until_gone(link)

    return speak


def cut_short(link: Link) -> None:
    is_ready(link)
    link.send(ANSWER.pack(*GOOD), words(7, 0, 1, 4) + PLAN + b"\x01\x02")


def no_answer(link: Link) -> None:
    link.send(os.urandom(4096))
    until_gone(link)


@pytest.mark.parametrize(
    ("speak", "why"),
    [
        (says(sequence=5), "batch 5 in place of batch 0"),
        (says(kind=77), "an answer of kind 77"),
        (says(used=1 << 50), "a slot has room for"),
        (says(words=12), "a description of 12 bytes"),
        (says(words=1 << 31), "a description of 2147483648 bytes"),
        (says(plan=1 << 31), "a plan of 2147483648 bytes"),
        (says(states=1 << 20), "states of 1048576"),
        (says(objects_at=3, objects_size=2), "objects at 3, of 2 bytes, in 4 bytes"),
        (says(plan=0, after=words(7, 0, 1, 4)), "a batch with plan 7, which it has not sent"),
        (cut_short, "it closed the connection"),
        (no_answer, "before it was ready"),
    ],
)
def test_what_no_far_worker_sends_is_refused(speak: Callable[[Link], None], why: str) -> None:
    far = Pretending(speak)
    with shmloader.DataLoader(DATASET, batch_size=4, far_workers=far) as loader, pytest.raises(RuntimeError) as error:
        next(iter(loader))
    assert "Far worker 0 is lost" in str(error.value) and why in str(error.value)


THERE = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5, 6, 7])]


def test_the_same_answers_without_a_fault_are_a_batch() -> None:
    """Otherwise the test above might refuse all."""

    def speak(link: Link) -> None:
        ask = is_ready(link)
        link.send(beat(0), ANSWER.pack(*GOOD._replace(sequence=ask.sequence)), words(7, 0, 1, 4), PLAN)
        for byte in b"\x01\x02\x03\x04":  # slowly
            time.sleep(0.01)
            link.send(bytes([byte]))
        until_gone(link)

    with shmloader.DataLoader(DATASET, batch_size=4, far_workers=Pretending(speak)) as loader:
        assert_same(next(iter(loader)), torch.tensor([1, 2, 3, 4], dtype=torch.uint8))


def test_a_batch_half_of_which_came_is_made_again() -> None:
    asked: list[int] = []

    class Twice(Here):
        """The first connection is cut in the middle of a batch, and a good far worker comes after it."""

        def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
            link = []

            def first() -> None:
                link.append(_knock(tickets[0]))
                ask = is_ready(link[0])
                asked.append(ask.sequence)
                link[0].send(ANSWER.pack(*GOOD._replace(sequence=ask.sequence)), words(7, 0, 1, 4) + PLAN + b"\x01\x02")
                link[0].close()
                session[0].processes.append(session[0].started(tickets[0]))

            session: list[Any] = [super().begin([], arguments)]
            thread = threading.Thread(target=first)
            thread.start()
            return session[0]

    options: dict[str, Any] = {"on_worker_death": "respawn", "far_workers": Twice(1)}
    with shmloader.DataLoader(DATASET, batch_size=4, **options) as loader:
        assert_same(list(loader), THERE)
    assert asked == [0]
