"""A reader's end: connects to the conductor, maps its rings, and notices if it ends, raises, or drops this reader.

Before it reads, three places check it: wire.py whose process it is, Host._welcome whether it may join, and
AttachedSide in attached.pyx whether both sides run the same version.

A thread sleeps until the conductor sends a message or is gone.  It notes that, and raises the alarm of the ring.  So a
reader that waits for a batch wakes at once, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from shmloader.core.attached import AttachedSide
from shmloader.core.late_signals import in_del
from shmloader.core.ring import Mapping
from shmloader.core.turns import Meter
from shmloader.readers.wire import NoDescriptorLeftError, Wire, bell
from shmloader.ring.geometry import Geometry
from shmloader.system.signals import held, held_in_del
from shmloader.system.thread_targets import ThreadTarget

SOON = 1.0  # seconds; a process that is killed closes its connections before it has ended


class Memory:
    """The conductor's memory, mapped here."""

    memfd = -1

    def __init__(self, geometry: Geometry, fd: int) -> None:
        self.geometry = geometry
        self.fd = fd
        self.mapping = Mapping(fd, geometry.mapped)


class AttachedRing:
    """One of the conductor's rings: the side that reads it, and the messages about it.

    Attributes:
        side: Takes its batches.
        ends: Where its epochs end: for each, by its serial, the sequence behind its last one.
        overs: For each epoch that ends, by its serial, the message about that.
        errors: For each error the epoch's serial, the sequence in whose place it comes, and its text.
        closed: Whether the conductor has ended it.
    """

    def __init__(self, number: int, side: AttachedSide) -> None:
        self.number = number
        self.side = side
        self.ends: dict[int, int] = {}
        self.overs: dict[int, dict[str, Any]] = {}
        self.errors: deque[tuple[int, int, str]] = deque()
        self.closed = False

    def forget_before(self, serial: int) -> None:
        """Forget the ends of the epochs before this one.  The conductor may be several short epochs ahead."""
        for ends in (self.ends, self.overs):
            for old in [each for each in list(ends) if each < serial]:
                ends.pop(old, None)

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
        self._epochs: deque[tuple[AttachedRing, dict[str, Any]] | str] = deque()  # which the reader has not begun
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # something came.  More may lie in it than came
        self.begun = self._epochs.popleft  # C code, which a signal's handler cannot break off
        self._bye = -1
        self._listener = ThreadTarget(_listen)
        self._joined = False
        self._closing = threading.RLock()
        try:
            with contextlib.suppress(ConnectionError):  # it has refused this reader, and the answer has the reason
                wire.send(hello)
            answer, _ = wire.receive(wait=True)
            if answer is None:
                ended = "has ended" if wire.is_dead(SOON) else "has closed the connection"
                raise ConnectionResetError(f"The process that provides these batches (pid {self.pid}) {ended}.")
            if "refused" in answer:
                raise RuntimeError(answer["refused"])
            self.greeting = answer
            self.spare = int(answer["spare"]) if spare is None else spare
            with held():  # otherwise an interrupt leaves a descriptor, or a thread that threading counts for ever
                self._bye = bell()
                given = wire, self._bye, weakref.ref(self)
                name = "shmloader_conductor"
                self._thread = threading.Thread(target=self._listener, args=given, name=name, daemon=True)
                self._thread.start()
        except BaseException:
            if self._bye >= 0 and not self._listener.prevent():  # a signal's handler has raised behind start()
                os.eventfd_write(self._bye, 1)
                self._listener.wait()
            if self._bye >= 0:
                os.close(self._bye)
            self._bye = -1
            wire.close()
            raise

    def next_epoch(self) -> tuple[AttachedRing, dict[str, Any]]:
        """Wait until the conductor begins another epoch.

        It is returned again until `begun()` is called.  Otherwise a signal's handler that raises meanwhile would lose
        it: the conductor would wait for this reader in that epoch, and this reader for the one after it.

        Returns:
            Its ring, and the message about it.

        Raises:
            RuntimeError: The conductor has raised where it should begin one, or is gone.
        """
        while not self._epochs:
            if self.gone:
                raise RuntimeError(self.gone)
            self._woken.get()
        found = self._epochs[0]
        if isinstance(found, str):
            self.begun()
            raise RuntimeError(found)
        return found

    @property
    def has_next(self) -> bool:
        """Whether next_epoch() would not wait."""
        return bool(self.gone) or bool(self._epochs)

    def leave(self, ring: AttachedRing) -> None:
        """Take nothing more from this ring."""
        with held(), contextlib.suppress(OSError):  # a handler's TimeoutError is an OSError, too
            self._wire.send({"leave": ring.number})

    def handle(self, message: dict[str, Any] | None, fds: list[int]) -> bool:
        """Handle a message, in the thread; false: none comes after it.  None: the conductor has ended."""
        if message is None or "ended" in message:
            ended = "has ended" if message or self._wire.is_dead(SOON) else "has closed the connection"
            self.end(
                f"The process that provides these batches (pid {self.pid}) {ended}. All batches that it finished were "
                "read. Look at its output for the reason."
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
            self._put((self._rings[message["epoch"]], message))  # a reader may still wait in the epoch before
        elif "dropped" in message:
            self.end(
                f"The process that provides these batches (pid {self.pid}) has dropped this reader: "
                f"{message['dropped']}"
            )
            return False
        elif "failed" in message and message["serial"] is None:
            self._put(_failed(message))
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
            ring.overs[message["serial"]] = message
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
        self._woken.put(None)
        self._alarm_all()

    def _put(self, epoch: tuple[AttachedRing, dict[str, Any]] | str) -> None:
        self._epochs.append(epoch)
        self._woken.put(None)
        self._alarm_all()

    def _alarm_all(self) -> None:
        for ring in list(self._rings.values()):
            ring.side.alarm()

    def close(self) -> None:
        """Take nothing more, and close the connection.  What is lent stays.  Twice does no harm.

        A signal's handler may break it off by an exception at any line.  Then the next call does the rest.
        """
        if self._owner != os.getpid():
            return
        with self._closing:
            if self._bye < 0:
                return
            self.end("This reader was closed. Attach again.")
            os.eventfd_write(self._bye, 1)
            # Where the interpreter ends, the thread does not run any more, and never notes that it has ended.
            if not sys.is_finalizing() and threading.current_thread() is not self._thread:
                self._listener.wait()
                if not self._joined:
                    self._joined = True  # first: if a handler raises in join(), CPython 3.11 would wait in the next one
                    self._thread.join()
            for ring in list(self._rings.values()):
                ring.side.leave()  # first: once the connection is closed, its index may go to another reader
            self._wire.close()
            bye, self._bye = self._bye, -1
            os.close(bye)

    @in_del
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_bye", -1) < 0:
            return
        if is_finalizing():  # global names may be None
            if os is not None:
                self.close()
            return
        try:  # first, because a signal may come after any call
            with held_in_del(self):
                self.close()
        finally:  # a signal may have come before signals were held back
            if getattr(self, "_bye", -1) >= 0:
                self.close()


def _failed(message: dict[str, Any]) -> str:
    return f"The process that provides these batches (pid {message['pid']}) has raised {message['what']}"


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
    with contextlib.suppress(OSError):  # otherwise the conductor would wait until this end receives its messages
        wire.sock.shutdown(socket.SHUT_RDWR)


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
        except NoDescriptorLeftError as error:
            if (attachment := mine()) is not None:
                attachment.end(str(error))
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
