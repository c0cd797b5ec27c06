"""A reader's end: its connection to the conductor, and the conductor's rings as it sees them.

A thread sleeps until the conductor says something or is gone.  It notes that, and raises the alarm of the ring that is
waited on; so a reader that waits for a batch wakes at once, whatever happens.
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

from shmloader.core.reader import ReaderSide
from shmloader.core.ring import Mapping
from shmloader.core.turns import Meter
from shmloader.readers.wire import Wire
from shmloader.ring.geometry import Geometry


class Memory:
    """The conductor's memory, mapped here."""

    memfd = -1

    def __init__(self, geometry: Geometry, fd: int) -> None:
        self.geometry = geometry
        self.fd = fd
        self.mapping = Mapping(fd, geometry.size)


class Stream:
    """One of the conductor's rings: what is read from it, and what was said of it.

    Attributes:
        side: Takes its batches.
        overs: Where its epochs end: of each the sequence behind its last one.
        errors: What is to be raised in which epoch, in place of which sequence.
        closed: Whether the conductor has ended it.
    """

    def __init__(self, number: int, side: ReaderSide) -> None:
        self.number = number
        self.side = side
        self.overs: dict[int, int] = {}
        self.errors: deque[tuple[int, int, str]] = deque()
        self.closed = False

    def error_here(self, serial: int) -> str | None:
        """What is to be raised in this epoch now, as all before it was taken; it is raised once."""
        while self.errors and self.errors[0][0] < serial:
            self.errors.popleft()
        if self.errors and self.errors[0][0] == serial and self.errors[0][1] <= self.side.cursor:
            return self.errors.popleft()[2]
        return None


class Attachment:
    """A reader's connection to its conductor.

    Args:
        wire: The connection.
        hello: What is said first.
        spare: How many batches may be lent; None: as many as the conductor says.
        spin: Whether a waiting reader may pause on its core.
        meter: What is measured is added to.

    Raises:
        RuntimeError: The conductor refuses, with its reason.
        ConnectionError: It is gone.
    """

    def __init__(self, wire: Wire, hello: dict[str, Any], spare: int | None, spin: bool, meter: Meter) -> None:
        self.pid = wire.pid
        self.gone = ""  # why nothing comes any more
        self._wire = wire
        self._spin = spin
        self._meter = meter
        self._owner = os.getpid()
        self._streams: dict[int, Stream] = {}
        self._epochs: queue.SimpleQueue[tuple[Stream, dict[str, Any]] | str | None] = queue.SimpleQueue()
        self._bye = -1
        try:
            wire.send(hello)
            answer, _ = wire.receive(wait=True)
            if answer is None:
                raise ConnectionResetError("the conductor has ended")
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

    def next_epoch(self) -> tuple[Stream, dict[str, Any]]:
        """Wait until the conductor begins another epoch.

        Returns:
            Its ring, and what is said of it.

        Raises:
            RuntimeError: It has raised where it should begin one, or it is gone.
        """
        if self.gone and self._epochs.empty():
            raise RuntimeError(self.gone)
        found = self._epochs.get()
        if found is None:
            raise RuntimeError(self.gone)
        if isinstance(found, str):
            raise RuntimeError(found)
        return found

    def leave(self, stream: Stream) -> None:
        """Take nothing more from this ring."""
        with contextlib.suppress(OSError):
            self._wire.send({"leave": stream.number})

    def heed(self, message: dict[str, Any] | None, fds: list[int]) -> bool:
        """Note what was said, in the thread; false where nothing more will be."""
        if message is None:
            self.end(f"the conductor of these batches (pid {self.pid}) has ended, and all that it published was read")
            return False
        if "ring" in message:
            try:
                memory = Memory(Geometry(**message["geometry"]), fds[0])
                side = ReaderSide(memory, self._spin, message["index"], message["cursor"], self.spare, self._meter)
                self._streams[message["ring"]] = Stream(message["ring"], side)
            finally:
                os.close(fds[0])
        elif "epoch" in message:
            self._epochs.put((self._streams[message["epoch"]], message))
        elif "dropped" in message:
            self.end(f"the conductor (pid {self.pid}) has dropped this reader: {message['dropped']}")
            return False
        elif "ended" in message:
            return self.heed(None, fds)
        elif "failed" in message and message["serial"] is None:
            self._epochs.put(_failed(message))
        else:
            self._note(message)
        return True

    def _note(self, message: dict[str, Any]) -> None:
        """Something was said of one ring."""
        (kind,) = {"over", "failed", "closed"} & set(message)
        stream = self._streams.get(message[kind])
        if stream is None:
            return
        if kind == "over":
            stream.overs[message["serial"]] = message["at"]
        elif kind == "failed":
            stream.errors.append((message["serial"], message["at"], _failed(message)))
        else:
            stream.closed = True
            del self._streams[stream.number]
        stream.side.alarm()

    def end(self, why: str) -> None:
        """Nothing comes any more."""
        self.gone = self.gone or why
        self._epochs.put(None)
        for stream in list(self._streams.values()):
            stream.side.alarm()

    def close(self) -> None:
        """Take nothing more, and say goodbye.  What is lent stays.  Twice does no harm."""
        if self._bye < 0 or self._owner != os.getpid():
            return
        self.end("this reader was closed")
        bye, self._bye = self._bye, -1
        os.eventfd_write(bye, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for stream in list(self._streams.values()):
            stream.side.leave()  # before the goodbye, which is the end of the connection
        os.close(bye)
        self._wire.close()

    def __del__(self) -> None:
        if os is not None and getattr(self, "_bye", -1) >= 0:
            self.close()


def _failed(message: dict[str, Any]) -> str:
    return f"the conductor of these batches (pid {message['pid']}) has raised {message['what']}"


def _listen(wire: Wire, bye: int, mine: weakref.ref[Attachment]) -> None:
    """Note what the conductor says, until it is gone or this end is closed."""
    poll = select.poll()
    for fd in (wire.sock.fileno(), wire.death, bye):
        poll.register(fd, select.POLLIN)
    goes_on = True
    while goes_on:
        found = [fd for fd, _ in poll.poll()]
        if bye in found:
            return
        goes_on = _hear(wire, mine, wire.death in found)


def _hear(wire: Wire, mine: weakref.ref[Attachment], dead: bool) -> bool:
    """Note all that was said; and then, if so, that the conductor is dead."""
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
            if not attachment.heed(message, fds):
                return False
        except Exception as error:  # no memory is left, or another shmloader conducts
            attachment.end(f"what the conductor (pid {wire.pid}) says cannot be used: {error}")
            return False
        del attachment
