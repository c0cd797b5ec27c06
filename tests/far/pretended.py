"""Far workers that say what a test wants, and a thread in place of a stand-in."""

from __future__ import annotations

import contextlib
import pickle
import struct
import threading
from collections.abc import Callable
from typing import Any

import torch
from engine import Here
from torch.utils.data import Dataset

from shmloader.far.door import Door
from shmloader.far.frames import (
    ANSWER,
    ASK,
    BATCH,
    READY,
    Answer,
    Ask,
)
from shmloader.far.link import Gone, Link
from shmloader.far.maker import _knock
from shmloader.far_workers import FarSession, Ticket

SECRET = b"s" * 32


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index >= 8:
            raise IndexError
        return index


DATASET = Numbers()


class Admitting(threading.Thread):
    """Waits at a door in a thread, as a stand-in does in its process; keeps the warnings that it gave."""

    def __init__(self, door: Door) -> None:
        super().__init__()
        self.door = door
        self.link: Link | None = None
        self.warned: list[str] = []
        self.start()

    def run(self) -> None:
        self.link = self.door.admit()

    def end(self) -> Link | None:
        self.join(60)
        assert not self.is_alive()
        return self.link


class Pretended(FarSession):
    """A far worker that knows the secret, and says what a test wants."""

    def __init__(self, ticket: Ticket, speak: Callable[[Link], None]) -> None:
        self.ticket, self.speak = ticket, speak
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while (link := _knock(self.ticket)) is not None:
            with link, contextlib.suppress(Gone):
                self.speak(link)

    def wait(self) -> None:
        pass

    def place(self, far: int) -> str:
        return ""

    def close(self) -> None:
        self.thread.join(60)


class Pretending(Here):
    def __init__(self, speak: Callable[[Link], None], **options: Any) -> None:
        super().__init__(1, **options)
        self.speak = speak

    def begin(self, tickets: list[Ticket], arguments: dict[str, Any]) -> FarSession:
        return Pretended(tickets[0], self.speak)


def is_ready(link: Link) -> Ask:
    """Be ready, and wait for a request."""
    node = b"elsewhere"
    link.send(ANSWER.pack(*Answer(READY, 0, 0, 0, len(node), 0, 0, 0, 0)), node)
    return receive_ask(link)


def until_gone(link: Link) -> None:
    """Receive what the stand-in still asks for, until it is gone.

    A far worker that left before would be lost with a batch under way.  That is an error, also for a loader that has a
    batch to hand out.
    """
    while True:
        link.receive(1)


PLAN = pickle.dumps((torch.uint8,))
GOOD = Answer(BATCH, 0, 4, 4 * 8, len(PLAN), 0, 0, 0, 0)


def words(*numbers: int) -> bytes:
    return struct.pack(f"{len(numbers)}q", *numbers)


def receive_ask(link: Link) -> Ask:
    ask = Ask(*ASK.unpack(link.receive(ASK.size)))
    link.receive(ask.task + ask.states)
    return ask
