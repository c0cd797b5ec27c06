"""The conductor's end: admits readers, gives them the ring's memory, tells them of epochs and errors, buries the dead.

A thread does what others begin: it accepts, hears goodbyes and sees deaths (pidfds).  The thread that iterates says the
rest.  Neither waits for a reader: one that does not read what it is told is dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from typing import Any

from shmloader.core.readers import MOST_READERS, Readers
from shmloader.core.trainer import TrainerSide
from shmloader.readers.told import told_of
from shmloader.readers.wire import Wire
from shmloader.resume.epoch import Epoch
from shmloader.ring.segment import Segment

_KEPT = 8  # messages of a ring that who comes later is told


class _Ring:
    """A ring that is open, and what a reader that joins now must be told of it."""

    def __init__(self, number: int, readers: Readers, segment: Segment) -> None:
        self.number = number
        self.readers = readers
        self.geometry = dataclasses.asdict(segment.geometry)
        self.fd = os.dup(segment.fd)
        self.said: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self.epochs: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # the number of an epoch, and the ring's of it
        self.held_up: tuple[int, int, float] = 0, 0, 0.0  # by which readers, at which sequence, since when


class _Guest:
    """A reader: a process, and its connection once it has one."""

    def __init__(self, index: int | None, pid: int, death: int) -> None:
        self.index = index
        self.pid = pid
        self.death = death
        self.wire: Wire | None = None
        self.waiting: list[tuple[dict[str, Any], tuple[int, ...]]] = []  # to be sent when it connects
        self.left = False  # it takes nothing more
        self.has_closed = False  # it has said so itself


class Host:
    """Where the batches of one loader are read from, by other processes.

    Args:
        listener: Where they connect.
        spares: How many batches all of them together may lend.
        pids: Of a group: the processes that read, in the order of their indices; None: whoever comes.
        reads: Whether this process reads too.
        patience: Where a reader holds up another for so many seconds, it is dropped; None: all wait for it.
        greeting: What else each of them is told first.
    """

    def __init__(
        self,
        listener: socket.socket,
        spares: int,
        pids: list[int] | None = None,
        reads: bool = True,
        patience: float | None = None,
        greeting: dict[str, Any] | None = None,
    ) -> None:
        self.reads = reads
        self.spares = spares
        self._listener = listener
        self._patience = patience
        self._is_group = pids is not None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._rings: dict[int, _Ring] = {}
        self._made = 0
        self._closed = False
        self._greeting = {"welcome": True, **(greeting or {})}
        self._coming: list[Wire] = []  # have connected, and not said yet what they want
        self._guests: list[_Guest] = []
        for index, pid in enumerate(pids or []):
            self._guests.append(_Guest(index, pid, os.pidfd_open(pid)))
        self._bye = os.eventfd(0, os.EFD_CLOEXEC)
        mine = weakref.ref(self)  # who iterates keeps it, and not its thread
        self._thread = threading.Thread(
            target=_look_after, args=(mine, self._bye), name="shmloader_readers", daemon=True
        )
        self._thread.start()

    # ------------------------------------------------------------------------------------ said by who iterates

    def ring_made(self, ring: TrainerSide, segment: Segment) -> int:
        with self._lock:
            self._made += 1
            assert ring.readers is not None
            made = self._rings[self._made] = _Ring(self._made, ring.readers, segment)
            for guest in self._guests:
                if not guest.left and (guest.index is not None or guest.wire is not None):  # it came before the ring
                    self._admit(guest, made, None)
        return made.number

    def began(self, number: int, epoch: Epoch) -> None:
        self._say(number, {"epoch": number, "serial": epoch.serial, "first": epoch.first, "told": told_of(epoch)})
        with self._lock:
            self._rings[number].epochs.append((epoch.number, epoch.serial))

    def over(self, number: int, epoch: Epoch, at: int) -> None:
        self._say(number, {"over": number, "serial": epoch.serial, "at": at})

    def failed(self, number: int, error: BaseException, epoch: Epoch | None, at: int) -> None:
        what = f"{type(error).__name__}: {error}"
        serial = None if epoch is None else epoch.serial
        self._say(number, {"failed": number, "serial": serial, "at": at, "what": what, "pid": os.getpid()})

    def closed(self, number: int, at: int) -> None:
        self._say(number, {"closed": number, "at": at})
        with self._lock:
            ring = self._rings.pop(number, None)
            if ring is not None:
                for guest in self._guests:
                    self._own_descriptors(guest, ring.fd)
                os.close(ring.fd)

    def _own_descriptors(self, guest: _Guest, closing: int) -> None:
        """Have what is to be sent later keep descriptors of its own."""
        for k, (message, fds) in enumerate(guest.waiting):
            if closing in fds:
                guest.waiting[k] = message, tuple(os.dup(fd) if fd == closing else fd for fd in fds)

    def _say(self, number: int, message: dict[str, Any]) -> None:
        if self._owner != os.getpid():
            return
        with self._lock:
            if number in self._rings:
                self._rings[number].said.append(message)
            for guest in list(self._guests):
                if guest.index is not None:
                    self._tell(guest, message)

    # ------------------------------------------------------------------------------------------------ one reader

    def _tell(self, guest: _Guest, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        if guest.left:
            return
        if guest.wire is None:
            if self._is_group:  # it will come
                guest.waiting.append((message, fds))
            return
        try:
            guest.wire.send(message, fds)
        except BlockingIOError:
            self._drop(guest, "it did not read what its conductor says")
        except OSError:
            pass  # it is gone, and the thread sees it

    def _admit(self, guest: _Guest, ring: _Ring, at: int | None) -> None:
        """Give a reader its place in a ring, and all that it needs to know of it."""
        given = ring.readers.admit(at, guest.index)
        assert given is not None, "there are more guests than indices"
        guest.index, cursor = given
        self._tell(
            guest, {"ring": ring.number, "geometry": ring.geometry, "index": guest.index, "cursor": cursor}, (ring.fd,)
        )
        ended = {said["serial"]: said["at"] for said in ring.said if "over" in said}
        for said in ring.said:
            if ended.get(said.get("serial"), cursor + 1) > cursor:  # otherwise nothing of that epoch is left
                self._tell(guest, said)

    def _drop(self, guest: _Guest, why: str) -> None:
        """A reader takes nothing more, and is told why; it may still lend.  It ends the connection once it heard."""
        self._take_from(guest)
        if guest.wire is not None:
            try:
                guest.wire.send({"dropped": why})
            except OSError:
                guest.wire.close()
                guest.wire = None

    def _take_from(self, guest: _Guest) -> None:
        guest.left = True
        for ring in self._rings.values():
            if guest.index is not None:
                ring.readers.drop(guest.index)

    def _hear_goodbye(self, guest: _Guest) -> None:
        """A reader has closed its end, and its process may live and still lend."""
        assert guest.wire is not None
        self._take_from(guest)
        guest.has_closed = True
        guest.wire.close()
        guest.wire = None

    def _forget_who_left(self) -> None:
        """Have the indices of readers back that said goodbye and lend nothing: NOTE [ Readers ], 4."""
        for guest in [guest for guest in self._guests if guest.has_closed]:
            index = guest.index
            if index is None or not any(ring.readers.holds(index) for ring in self._rings.values()):
                self._bury(guest)

    def _bury(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        if guest.index is not None:
            for ring in self._rings.values():
                ring.readers.bury(guest.index)
        if guest.wire is not None:
            guest.wire.close()
        os.close(guest.death)

    # ------------------------------------------------------------------------------------------------ the thread

    def watched(self) -> tuple[dict[int, _Guest | Wire | None], int | None]:
        """The descriptors to wait for, whose each of them is, and for how many milliseconds at most."""
        with self._lock:
            if self._closed:
                return {}, 0
            found: dict[int, _Guest | Wire | None] = {self._listener.fileno(): None}
            found.update((wire.sock.fileno(), wire) for wire in self._coming)
            for guest in self._guests:
                found[guest.death] = guest
                if guest.wire is not None:
                    found[guest.wire.sock.fileno()] = guest
            return found, 1000 if self._patience is not None and len(self._guests) > 1 else None

    def heed(self, found: list[tuple[int, _Guest | Wire | None]]) -> None:
        """Look after those whose descriptors are readable, and after those that are slow."""
        with self._lock:
            for fd, of in found:
                if not self._closed:
                    self._heed(fd, of)
            if self._patience is not None and not self._closed:
                self._drop_the_slow()

    def _heed(self, fd: int, guest: _Guest | Wire | None) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif isinstance(guest, Wire):
            self._coming.remove(guest)
            self._hear_hello(guest)
        elif guest is None or guest not in self._guests:
            return
        elif fd == guest.death:
            self._bury(guest)
        elif guest.wire is not None:
            try:
                message, fds = guest.wire.receive()
            except BlockingIOError:
                return
            for each in fds:
                os.close(each)
            if message is None:
                self._hear_goodbye(guest)
            elif "leave" in message and (ring := self._rings.get(message["leave"])) is not None:
                assert guest.index is not None
                ring.readers.drop(guest.index)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        try:
            self._coming.append(Wire(sock))
        except OSError:  # another user's, or gone
            sock.close()

    def _hear_hello(self, wire: Wire) -> None:
        try:
            hello, fds = wire.receive()
            for fd in fds:
                os.close(fd)
            if hello is None:
                raise ConnectionError
            self._welcome(wire, hello)
        except RuntimeError as error:
            with contextlib.suppress(OSError):
                wire.send({"refused": str(error)})
            wire.close()
        except OSError:
            wire.close()

    def _welcome(self, wire: Wire, hello: dict[str, Any]) -> None:
        """Admit a reader that has connected.

        Raises:
            RuntimeError: It cannot be: what it is told.
        """
        if self._is_group:
            known = [guest for guest in self._guests if guest.pid == wire.pid]
            if not known:
                raise RuntimeError(f"process {wire.pid} is none of the group that reads this loader")
            (guest,) = known
            if guest.wire is not None:
                guest.wire.close()
            guest.wire, waiting, guest.waiting = wire, guest.waiting, []
            wire.send(self._greeting)
            for message, fds in waiting:
                self._tell(guest, message, fds)
            return
        self._check_server(hello)
        self._forget_who_left()
        if len(self._guests) >= MOST_READERS:
            raise RuntimeError(
                f"{MOST_READERS} readers have this loader, or lend batches of it, which is as many as can. Close one, "
                "and drop its batches"
            )
        at = {number: self._find(ring, hello) for number, ring in self._rings.items()}
        guest = _Guest(None, wire.pid, os.dup(wire.death))
        guest.wire = wire
        wire.send(self._greeting)
        self._guests.append(guest)
        for number, ring in self._rings.items():
            self._admit(guest, ring, at[number])

    def _check_server(self, hello: dict[str, Any]) -> None:
        if hello.get("batch") is not None and hello["server"] != self._greeting.get("server"):
            raise RuntimeError(
                f"batch {hello['batch']} of epoch {hello['epoch']} was another server's: this one was started since, "
                "and its batches are others. Attach without a state to take the next one"
            )

    def _find(self, ring: _Ring, hello: dict[str, Any]) -> int | None:
        """Where a reader goes on that names a batch; None where it names none."""
        if hello.get("batch") is None:
            return None
        epoch, batch = hello["epoch"], hello["batch"]
        for number, serial in ring.epochs:
            if number == epoch and (found := ring.readers.find(serial, batch)) is not None:
                return int(found)
        readers = ring.readers
        named = readers.named(readers.all_took)
        following = "the one that is opened next"
        if named is not None:
            of = [number for number, serial in ring.epochs if serial == named[0]]
            following = f"batch {named[1]} of epoch {of[0] if of else named[0]}"
        raise RuntimeError(
            f"batch {batch} of epoch {epoch} is not in the ring any more. The next one that can be had is {following}: "
            "attach without a state to go on there"
        )

    def _drop_the_slow(self) -> None:
        assert self._patience is not None
        for ring in self._rings.values():
            holding, at = ring.readers.holding_up(), ring.readers.all_took
            if not holding or not ring.readers.starved():
                ring.held_up = 0, 0, 0.0
            elif ring.held_up[:2] != (holding, at):
                ring.held_up = holding, at, time.monotonic()
            elif time.monotonic() - ring.held_up[2] >= self._patience:
                for guest in list(self._guests):
                    if guest.index is not None and holding >> guest.index & 1:
                        self._drop(
                            guest,
                            f"it held up the others for {self._patience:g} seconds: they had taken all batches, and it "
                            "had not taken the oldest one",
                        )

    def wait_for_the_last(self) -> None:
        """Wait until no reader is due for anything more."""
        while True:
            with self._lock:
                due = any(ring.readers.any_due for ring in self._rings.values())
            if not due:
                return
            time.sleep(0.05)  # once in a server's life, at its end

    # ------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the thread and all connections.  Readers keep what they lend.  Twice does no harm."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for guest in self._guests:
                for ring in self._rings.values():  # an iterator may go on, and must not wait for them
                    if guest.index is not None:
                        ring.readers.drop(guest.index)
                if guest.wire is not None:
                    with contextlib.suppress(OSError):
                        guest.wire.send({"ended": os.getpid()})
                    guest.wire.close()
                os.close(guest.death)
            for wire in self._coming:
                wire.close()
            self._coming.clear()
            self._guests.clear()
            for ring in self._rings.values():
                os.close(ring.fd)
            self._rings.clear()
        os.eventfd_write(self._bye, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._listener.close()
        os.close(self._bye)

    def __del__(self) -> None:
        if os is not None and hasattr(self, "_thread"):
            self.close()


def _look_after(mine: weakref.ref[Host], bye: int) -> None:
    """The thread: it sleeps until somebody comes, says something, leaves or dies."""
    while True:
        host = mine()
        if host is None:
            return
        watched, timeout = host.watched()
        del host
        if not watched:
            return
        poll = select.poll()
        for fd in (bye, *watched):
            poll.register(fd, select.POLLIN)
        found = [fd for fd, _ in poll.poll(timeout)]
        host = mine()
        if host is None or bye in found:
            return
        host.heed([(fd, watched[fd]) for fd in found])
        del host
