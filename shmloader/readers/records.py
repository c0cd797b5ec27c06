"""What a host knows of each of its rings, and of each reader.
It decides which messages about epochs are kept for readers that join later.  host.py keeps those for a rank that has
not connected yet, and sends them when it connects.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from shmloader.core.readers import Readers
from shmloader.readers.wire import Wire
from shmloader.ring.segment import Segment


class RingRecord:
    """A ring that is open, and what a reader that joins now must know of it."""

    def __init__(self, number: int, readers: Readers, segment: Segment) -> None:
        self.number = number
        self.readers = readers
        self.geometry = dataclasses.asdict(segment.geometry)
        self.fd = os.dup(segment.fd)
        self.messages: list[dict[str, Any]] = []  # of the epochs of which the ring may have a batch
        self.epochs: list[tuple[int, int, int]] = []  # of these: the number, the ring's serial, the first sequence
        self.held_up: tuple[int, int, float] = 0, 0, 0.0  # by which readers, at which sequence, since when

    def note(self, message: dict[str, Any]) -> None:
        """Keep a message for readers that join later.  Drop the messages of epochs that have no batch left in the ring.

        A short epoch may be one batch, so the ring may have as many epochs as entries.  A reader that joins at one of
        their batches needs the message of its epoch.  Without the message it would pass over the batch.
        """
        if message.get("serial") is None:  # of no epoch
            return
        self.messages.append(message)
        if "epoch" not in message:
            return
        self.epochs.append((message["of"]["number"], message["serial"], message["first"]))
        while len(self.epochs) > 1 and self.epochs[1][2] <= message["first"] - self.geometry["entries"]:
            del self.epochs[0]
        self.messages = [message for message in self.messages if message["serial"] >= self.epochs[0][1]]

    def messages_from(self, cursor: int) -> list[dict[str, Any]]:
        """What a reader must know that begins with this sequence."""
        ended = {message["serial"]: message["at"] for message in self.messages if "over" in message}
        return [message for message in self.messages if ended.get(message["serial"], cursor + 1) > cursor]

    def end_of(self, number: int) -> tuple[int, int] | None:
        """Where an epoch has ended: the sequence behind its last batch, and its number of batches."""
        serials = [serial for other, serial, _ in self.epochs if other == number]
        for message in self.messages:
            if "over" in message and message["serial"] in serials:
                return message["at"], message["batches"]
        return None

    def next_joined(self) -> tuple[int, int]:
        """The epoch, and the number in it, of the batch with which a reader begins that names none."""
        at = self.readers.joins_at()
        if (named := self.readers.named(at)) is not None:
            return self.epoch_of(named[0]), named[1]
        last = self.readers.named(at - 1) if at else None
        if last is None:
            return self.epochs[-1][0], 0
        epoch, batch = self.epoch_of(last[0]), last[1] + 1
        end = self.end_of(epoch)
        return (epoch + 1, 0) if end is not None and end[1] == batch else (epoch, batch)

    def epoch_of(self, serial: int) -> int:
        """The number of the epoch with this serial; the serial itself, if the epoch was forgotten."""
        return next((number for number, other, _ in self.epochs if other == serial), serial)


class ReaderRecord:
    """A reader: a process, and its connection once it has one."""

    def __init__(self, index: int | None, pid: int, death: int) -> None:
        self.index = index
        self.pid = pid
        self.death = death
        self.wire: Wire | None = None
        self.unsent: list[tuple[dict[str, Any], tuple[int, ...]]] = []  # messages until it connects, and descriptors
        self.left = False  # it takes nothing more
        self.has_closed = False  # it has left by itself

    def drop_unsent(self) -> None:
        """Free its messages, because it will not connect."""
        while self.unsent:
            close_all(self.unsent.pop()[1])


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
