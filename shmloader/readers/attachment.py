"""A reader's end: its connection to the conductor, and the conductor's rings as it sees them.

A thread sleeps until the conductor sends a message or is gone.  It notes that, and raises the alarm of the ring.  So a
reader that waits for a batch wakes at once, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import weakref
from collections import deque
from typing import Any

from shmloader.core.attached import AttachedSide
from shmloader.core.ring import Mapping
from shmloader.core.turns import Meter
from shmloader.readers.wire import Wire
from shmloader.ring.geometry import Geometry

SOON = 1.0  # seconds; a process that is killed closes its connections before it has ended


class Memory:
    """The conductor's memory, mapped here."""

    memfd = -1

    def __init__(self, geometry: Geometry, fd: int) -> None:
        self.geometry = geometry
        self.fd = fd
        self.mapping = Mapping(fd, geometry.size)


class AttachedRing:
    """One of the conductor's rings: the side that reads it, and the messages about it.

    Attributes:
        side: Takes its batches.
        ends: Where its epochs end: for each, by its serial, the sequence behind its last one.
        errors: For each error the epoch's serial, the sequence in whose place it comes, and its text.
        closed: Whether the conductor has ended it.
    """

    def __init__(self, number: int, side: AttachedSide) -> None:
        self.number = number
        self.side = side
        self.ends: dict[int, int] = {}
        self.errors: deque[tuple[int, int, str]] = deque()
        self.closed = False

    def error_here(self, serial: int) -> str | None:
        """The text of an error that comes here in this epoch, because all before it was taken; it is returned once."""
        while self.errors and self.errors[0][0] < serial:
            self.errors.popleft()
        if self.errors and self.errors[0][0] == serial and self.errors[0][1] <= self.side.cursor:
            return self.errors.popleft()[2]
        return None


class Attachment:
    """A reader's connection to its conductor.

    Args:
        wire: The connection.
        hello: The first message.
        spare: How many batches may be lent; None: as many as the conductor allows.
        spin: Whether a waiting reader may pause on its core.
        meter: Counts for how long batches are lent.

    Raises:
        RuntimeError: The conductor refuses this reader, with its reason.
        ConnectionError: It is gone.
    """

    def __init__(self, wire: Wire, hello: dict[str, Any], spare: int | None, spin: bool, meter: Meter) -> None:
        self.pid = wire.pid
        self.gone = ""  # why no more batches come
        self._wire = wire
        self._spin = spin
        self._meter = meter
        self._owner = os.getpid()
        self._rings: dict[int, AttachedRing] = {}
        self._epochs: queue.SimpleQueue[tuple[AttachedRing, dict[str, Any]] | str | None] = queue.SimpleQueue()
        self._bye = -1
        try:
            with contextlib.suppress(ConnectionError):  # it has refused this reader, and the answer has the reason
                wire.send(hello)
            answer, _ = wire.receive(wait=True)
            if answer is None:
                ended = "has ended" if wire.is_dead(SOON) else "has closed the connection"
                raise ConnectionResetError(f"The conductor (pid {self.pid}) {ended}.")
            if "refused" in answer:
                raise RuntimeError(answer["refused"])
            self.greeting = answer
            self.spare = int(answer["spare"]) if spare is None else spare
            self._bye = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(
                target=_listen, args=(wire, self._bye, weakref.ref(self)), name="shmloader_conductor", daemon=True
            )
            self._thread.start()
        except BaseException:
            if self._bye >= 0:
                os.close(self._bye)
            self._bye = -1
            wire.close()
            raise

    def next_epoch(self) -> tuple[AttachedRing, dict[str, Any]]:
        """Wait until the conductor begins another epoch.

        Returns:
            Its ring, and the message about it.

        Raises:
            RuntimeError: The conductor has raised where it should begin one, or is gone.
        """
        if self.gone and self._epochs.empty():
            raise RuntimeError(self.gone)
        found = self._epochs.get()
        if found is None:
            raise RuntimeError(self.gone)
        if isinstance(found, str):
            raise RuntimeError(found)
        return found

    @property
    def has_next(self) -> bool:
        """Whether next_epoch() would not wait."""
        return bool(self.gone) or not self._epochs.empty()

    def leave(self, ring: AttachedRing) -> None:
        """Take nothing more from this ring."""
        with contextlib.suppress(OSError):
            self._wire.send({"leave": ring.number})

    def handle(self, message: dict[str, Any] | None, fds: list[int]) -> bool:
        """Handle a message, in the thread; false: none comes after it.  None: the conductor has ended."""
        if message is None or "ended" in message:
            ended = "has ended" if message or self._wire.is_dead(SOON) else "has closed the connection"
            self.end(
                f"The conductor of these batches (pid {self.pid}) {ended}, and all that it published was read. Its "
                "own error is there."
            )
            return False
        if "ring" in message:
            try:
                memory = Memory(Geometry(**message["geometry"]), fds[0])
                side = AttachedSide(memory, self._spin, message["index"], message["cursor"], self.spare, self._meter)
                self._rings[message["ring"]] = AttachedRing(message["ring"], side)
            finally:
                os.close(fds[0])
        elif "epoch" in message:
            self._epochs.put((self._rings[message["epoch"]], message))
            self._alarm_all()  # a reader may still wait in the epoch before
        elif "dropped" in message:
            self.end(f"The conductor (pid {self.pid}) has dropped this reader: {message['dropped']}")
            return False
        elif "failed" in message and message["serial"] is None:
            self._epochs.put(_failed(message))
            self._alarm_all()
        else:
            self._note(message)
        return True

    def _note(self, message: dict[str, Any]) -> None:
        """Note a message about one ring."""
        (kind,) = {"over", "failed", "closed"} & set(message)
        ring = self._rings.get(message[kind])
        if ring is None:
            return
        if kind == "over":
            ring.ends[message["serial"]] = message["at"]
        elif kind == "failed":
            ring.errors.append((message["serial"], message["at"], _failed(message)))
        else:
            ring.closed = True
            del self._rings[ring.number]
        ring.side.alarm()

    def end(self, why: str) -> None:
        """Note that no more batches come, and why."""
        self.gone = self.gone or why
        self._epochs.put(None)
        self._alarm_all()

    def _alarm_all(self) -> None:
        for ring in list(self._rings.values()):
            ring.side.alarm()

    def close(self) -> None:
        """Take nothing more, and close the connection.  What is lent stays.  Twice does no harm."""
        if self._bye < 0 or self._owner != os.getpid():
            return
        self.end("This reader was closed. Attach again.")
        bye, self._bye = self._bye, -1
        os.eventfd_write(bye, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for ring in list(self._rings.values()):
            ring.side.leave()  # first: once the connection is closed, its index may go to another reader
        os.close(bye)
        self._wire.close()

    def __del__(self) -> None:
        if os is not None and getattr(self, "_bye", -1) >= 0:
            self.close()


def _failed(message: dict[str, Any]) -> str:
    return f"The conductor of these batches (pid {message['pid']}) has raised {message['what']}"


def _listen(wire: Wire, bye: int, mine: weakref.ref[Attachment]) -> None:
    """Handle the conductor's messages, until it is gone or this end is closed."""
    poll = select.poll()
    for fd in (wire.sock.fileno(), wire.death, bye):
        poll.register(fd, select.POLLIN)
    goes_on = True
    while goes_on:
        found = [fd for fd, _ in poll.poll()]
        if bye in found:
            return
        goes_on = _receive(wire, mine, wire.death in found)


def _receive(wire: Wire, mine: weakref.ref[Attachment], dead: bool) -> bool:
    """Handle all messages that have come, and then the conductor's death, if it is dead."""
    while True:
        try:
            message, fds = wire.receive()
        except BlockingIOError:
            if not dead:
                return True
            message, fds = None, []
        except OSError:  # it was closed
            return False
        attachment = mine()
        if attachment is None:
            return False
        try:
            if not attachment.handle(message, fds):
                return False
        except Exception as error:  # no memory is left, or another shmloader conducts
            attachment.end(
                f"A message of the conductor (pid {wire.pid}) cannot be used: {error}. Run the same shmloader in both "
                "processes."
            )
            return False
        del attachment
