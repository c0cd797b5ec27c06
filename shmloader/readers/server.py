"""`shmloader serve`: takes a loader's batches, and holds each one's lease until all readers have sent the batch back.
It decides which readers get a batch, and drops one that holds up others.  NOTE [ Readers on leases ], served_side.pyx.

One thread does everything.  It sleeps until a reader connects, sends something back or ends, and while the workers have
no batch ready.  With no reader it pauses.  What the last reader has not read is left for the next one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Collection
from typing import Any

from shmloader.core.served_side import MOST_IN_SOCKET, VERSION
from shmloader.options import Options
from shmloader.readers.connection import (
    BATCH,
    BESIDE,
    DROPPED,
    FAILED,
    LEAVES,
    OVER,
    TAKEN,
    Listener,
    address_of,
    peer_of,
)
from shmloader.readers.taken import ON_THE_WAY, ServingIterator, Taken, check_servable, kept_by_reader
from shmloader.resume.place import place_of

LONGEST_SLEEP = 3600.0  # seconds, because epoll takes no infinite number


class _Reader:
    """A process that has connected."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        _, self.death = peer_of(sock)
        self.fds = [fd for fd in (sock.fileno(), self.death) if fd >= 0]
        self.hello: dict[str, Any] | None = None  # what it has said
        self.joins = ""  # with the next "batch" or "epoch"; empty: it was not answered yet
        self.shares = False
        self.is_due = False  # it gets the next batch
        self.is_leaving = False  # it gets nothing more, and still shares slots

    @property
    def waits(self) -> bool:
        """Whether it is to get batches, and gets none yet."""
        return bool(self.joins) and not self.is_due and not self.is_leaving


class _Held:
    """A message about a batch, or about an epoch's end, that not all readers have sent back."""

    def __init__(self, text: bytes, taken: Taken | None, before: bytes) -> None:
        self.text = text
        self.taken = taken
        self.before = before  # the state before it
        self.place: tuple[int, int] | None = None  # of a long text
        self.by: set[_Reader] = set()
        self.shared_by: set[_Reader] = set()  # those of them whose tensors lie in the slot
        self.is_left = False  # the last reader that was due has not read it, so the next one gets it

    @property
    def unread_by(self) -> set[_Reader]:
        return self.by - self.shared_by


class Server:
    """Gives a loader's batches to all processes that have attached.

    Args:
        loader: The loader.
        listener: Accepts readers.
        patience: A reader that holds up another for so many seconds is dropped.
        needed: How many readers must have attached before the first of them gets a batch.
    """

    def __init__(self, loader: Any, listener: Listener, patience: float, needed: int) -> None:
        options = Options.of(loader)
        self._loader = loader
        self._listener = listener
        self._patience = patience
        self._needed = needed
        self._kept = kept_by_reader(options)
        self._held: dict[int, _Held] = {}  # the oldest first
        self._number = 0
        self._readers: list[_Reader] = []
        self._watched: dict[int, _Reader] = {}
        self._held_up = 0, 0.0  # the oldest message while a reader waits for others, and since when
        self._at_start = True  # no batch of this epoch was taken
        loader.set_epoch(place_of(loader).next_number)
        self._state = self._state_now()
        self._iterator = loader._iterator = ServingIterator(loader, options)
        self._poll = select.epoll()
        self._poll.register(listener.sock, select.EPOLLIN)

    def serve(self) -> None:
        """Serve one epoch after the other, until something raises."""
        while True:
            self._serve_epoch()
            self._loader.set_epoch(place_of(self._loader).next_number)
            self._iterator._reset(self._loader)

    def _serve_epoch(self) -> None:
        self._at_start = True
        while self._wait_for_readers():
            taken = next(self._iterator, None)
            if taken is None and self._at_start:
                raise ValueError(
                    "A loader that is served must give batches, but this one gave none in an epoch. Look at its "
                    "dataset, sampler, batch_size and drop_last."
                )
            self._at_start = False
            self._send_next(taken)
            if taken is None:
                return

    def _send_next(self, taken: Taken | None) -> None:
        """Send a batch, or the end of an epoch, to all readers that are due."""
        before, self._state = self._state, self._state_now()
        self._number += 1
        kind, said = (OVER, ()) if taken is None else (BATCH, (self._are_all_lent(), *taken.said))
        held = _Held(pickle.dumps((kind, self._number, self._state, *said), 5), taken, before)
        if len(held.text) > MOST_IN_SOCKET:
            held.place = self._iterator.beside.write(held.text)
            held.text = pickle.dumps((BESIDE, self._number, *held.place))
        self._held[self._number] = held
        self._send_held(held, self._due())

    def _send_held(self, held: _Held, readers: Collection[_Reader]) -> None:
        held.by.update(readers)  # first: if one of them is gone, the others still hold it
        for reader in readers:
            try:
                reader.sock.send(held.text, socket.MSG_NOSIGNAL)
            except OSError:
                self._forget(reader)

    def _state_now(self) -> bytes:
        """The loader's state, pickled; or the text of what state_dict() has raised."""
        try:
            return pickle.dumps(self._loader.state_dict())
        except Exception as error:
            return pickle.dumps(f"The server's state_dict() has raised {type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------------------------ waiting

    def _due(self) -> list[_Reader]:
        return [reader for reader in self._readers if reader.is_due]

    def _are_all_lent(self) -> bool:
        """Whether all slots but one are in use.  Of what is in that one, readers make copies."""
        return len(self._held) >= self._kept + ON_THE_WAY

    def _may_take(self, due: set[_Reader]) -> bool:
        """Whether another batch can be sent.

        Readers of shared batches may keep some each, and so all slots together.  If all have read all, and wait, they
        get a batch in the last slot.
        """
        if not self._are_all_lent():
            return True
        return len(self._held) == self._kept + ON_THE_WAY and not any(
            due & held.unread_by for held in self._held.values()
        )

    def _wait_for_readers(self) -> bool:
        """Wait until a reader is due and another batch can be sent; false: to begin another epoch.

        That is if nobody reads the rest of this one, because all wait for the next one.
        """
        timeout: float | None = 0  # first look at what has come
        while True:
            for fd, _ in self._poll.poll(timeout):
                self._handle(fd)
            while new := [reader for reader in self._readers if reader.hello is not None and not reader.joins]:
                self._answer(new)
            self._let_in()
            due = self._due()
            if due and self._may_take(set(due)):
                return True
            if not due and sum(reader.waits for reader in self._readers) >= self._needed:
                return False
            timeout = self._drop_the_slow(set(due)) if due else None

    def _let_in(self) -> None:
        """Make readers due that may begin now.  If nobody was due, they get what is left."""
        waiting = [reader for reader in self._readers if reader.waits]
        is_first = not self._due()
        if not waiting or (is_first and len(waiting) < self._needed):
            return
        joining = [reader for reader in waiting if reader.joins == "batch" or self._at_start]
        left = [(number, held) for number, held in self._held.items() if held.is_left] if is_first and joining else []
        for reader in joining:
            reader.is_due = True
        for number, held in left:
            if not self._due():  # they have ended meanwhile, and the rest is left for the next one
                return
            held.is_left = False
            self._send_held(held, [reader for reader in joining if reader.joins == "batch" and reader.is_due])
            self._free_if_unused(number)

    def _drop_the_slow(self, due: set[_Reader]) -> float | None:
        """Drop readers for which others have waited too long; how many seconds they still have, or None."""
        held = [(number, due & held.unread_by) for number, held in self._held.items() if due & held.unread_by]
        if not held or due == set().union(*(readers for _, readers in held)):  # nobody has read all batches
            self._held_up = 0, 0.0
            return None
        number, slow = held[0]
        if self._held_up[0] != number:
            self._held_up = number, time.monotonic()
        left = self._patience - (time.monotonic() - self._held_up[1])
        if left > 0:
            return min(left, LONGEST_SLEEP)
        why = (
            f"This reader was dropped, because it held up the others for {self._patience:g} seconds. They had read all "
            "batches, and it had not read the oldest one. Iterate again, or serve with more --patience."
        )
        for reader in slow:
            self._tell(reader, DROPPED, why)
            if reader.shares:
                self._leave_with_slots(reader)
            else:
                self._forget(reader)
        return 0

    def _leave_with_slots(self, reader: _Reader) -> None:
        """Drop a reader, and hold what it shares until it has closed its end."""
        reader.sock.shutdown(socket.SHUT_RD)  # from here on it cannot announce another slot
        self._poll.modify(reader.sock, 0)
        self._hear(reader)
        self._leave(reader)

    def _leave(self, reader: _Reader) -> None:
        """A reader takes nothing more, and still shares slots."""
        self._leave_unread(reader)
        reader.is_leaving = True
        for number, held in list(self._held.items()):
            if reader in held.unread_by:
                self._come_back(number, reader)

    def _leave_unread(self, reader: _Reader) -> None:
        """A reader is due for nothing more.  If no other one is due, what it has not read is left for the next one."""
        was_due, reader.is_due = reader.is_due, False
        if was_due and not self._due():
            for held in self._held.values():
                held.is_left = held.is_left or reader in held.unread_by

    # ------------------------------------------------------------------------------------------------ readers

    def _handle(self, fd: int) -> None:
        """Handle what has come."""
        if fd == self._listener.sock.fileno():
            self._accept()
        elif (reader := self._watched.get(fd)) is not None:  # otherwise it ended just before
            try:
                if fd == reader.death or not self._hear(reader):
                    self._forget(reader)
            except Exception as error:
                self._refuse(reader, error)

    def _refuse(self, reader: _Reader, error: Exception) -> None:
        """End with one process, whatever it has sent.  The others are served on."""
        self._tell(reader, FAILED, f"The server cannot serve this process: {error}")
        self._forget(reader)

    def _accept(self) -> None:
        sock = self._listener.accept()
        if sock is not None:
            try:
                reader = _Reader(sock)
            except (PermissionError, ProcessLookupError):  # another user's, or gone
                sock.close()
                return
            self._readers.append(reader)
            for fd in reader.fds:
                self._watched[fd] = reader
                self._poll.register(fd, select.EPOLLIN)

    def _hear(self, reader: _Reader) -> bool:
        """Receive all that a reader has sent; false if it has closed."""
        while True:
            try:
                text = reader.sock.recv(MOST_IN_SOCKET)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                continue  # it has closed and not read all, which the kernel says once; what it had sent comes behind
            except OSError:
                return False
            if not text:
                return False
            if reader.hello is None:
                reader.hello = pickle.loads(text)
                continue
            (number,) = struct.unpack("Q", text)
            if number == LEAVES:
                self._leave(reader)
            elif number & TAKEN:
                if (held := self._held.get(number - TAKEN)) is not None:
                    held.shared_by.add(reader)
            else:
                self._come_back(number, reader)

    def _come_back(self, number: int, reader: _Reader) -> None:
        if (held := self._held.get(number)) is not None:
            held.by.discard(reader)
            self._free_if_unused(number)

    def _answer(self, new: list[_Reader]) -> None:
        """Answer readers that have said hello.  First look who has ended before: what that one has not read is left."""
        for fd, _ in self._poll.poll(0):
            self._handle(fd)
        for reader in new:
            if reader in self._readers and reader.hello is not None:
                try:
                    self._welcome(reader, reader.hello)
                except Exception as error:
                    self._refuse(reader, error)

    def _welcome(self, reader: _Reader, hello: dict[str, Any]) -> None:
        """Send a reader what it needs to read."""
        if hello["version"] != VERSION:
            raise RuntimeError(f"it reads version {hello['version']}, not {VERSION}. Run the same shmloader in both.")
        fd, geometry = self._iterator.memory
        try:
            length = len(self._loader)
        except TypeError:
            length = None
        first = next((held for held in self._held.values() if held.is_left), None)
        state = self._state if first is None else first.before
        greeting = {"geometry": geometry, "kept": self._kept, "length": length, "state": state}
        socket.send_fds(reader.sock, [pickle.dumps(greeting)], [fd, self._iterator.beside.fd])
        reader.joins, reader.shares = hello["join"], hello["shares"]

    def _tell(self, reader: _Reader, kind: int, why: str) -> None:
        with contextlib.suppress(OSError):
            reader.sock.send(pickle.dumps((kind, 0, why)), socket.MSG_NOSIGNAL)

    def _forget(self, reader: _Reader) -> None:
        """A reader has ended, and nothing is held for it any more."""
        if reader not in self._readers:
            return
        with contextlib.suppress(Exception):  # what it has sent back before it ended was read
            self._hear(reader)
        self._leave_unread(reader)
        self._readers.remove(reader)
        for fd in reader.fds:
            del self._watched[fd]
            self._poll.unregister(fd)
        _close(reader)  # before any of its slots is filled again: NOTE [ Readers on leases ], 4
        for number, held in list(self._held.items()):
            held.by.discard(reader)
            self._free_if_unused(number)

    def _free_if_unused(self, number: int) -> None:
        held = self._held.get(number)
        if held is not None and not held.by and not held.is_left:
            del self._held[number]
            if held.taken is not None:
                held.taken.close()
            if held.place is not None:
                self._iterator.beside.free(held.place)

    # ------------------------------------------------------------------------------------------------ the end

    def close(self, error: Exception | None) -> None:
        """End the workers and all connections.  Slots that readers may still read are not given back.

        Args:
            error: What has raised here; readers hear of it behind the batches that they were sent.
        """
        try:
            self._iterator.close()
        finally:
            self._listener.close()
            self._poll.close()
            os.close(self._iterator.beside.fd)
            for reader in self._readers:
                if error is not None:
                    self._tell(reader, FAILED, f"The server has raised {type(error).__name__}: {error}")
                _close(reader)


def _close(reader: _Reader) -> None:
    with contextlib.suppress(OSError):  # a worker that was forked from this process may have the socket
        reader.sock.shutdown(socket.SHUT_RDWR)
    reader.sock.close()
    if reader.death >= 0:
        os.close(reader.death)


_lent: list[Server] = []


def serve(
    loader: Any, name: str, *, patience: float = 10.0, needed: int = 1, on_start: Callable[[], object] | None = None
) -> None:
    """Host a loader, epoch after epoch, until something raises or this process ends.

    If this has raised, the process should end by os._exit(): readers may still read what is lent, and the end of the
    interpreter would give that memory back.

    Args:
        loader: A `shmloader.DataLoader` with workers that persist.
        name: What others attach to.
        patience: A reader that holds up another for so many seconds is dropped.
        needed: How many readers must have attached before the first of them gets a batch.
        on_start: Called once, when others can attach.

    Raises:
        ValueError: The loader cannot be served, with the reason.
        OSError: EADDRINUSE: another process serves under this name.
    """
    check_servable(loader)
    try:
        listener = Listener(address_of(name))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OSError(
            errno.EADDRINUSE, f"Another process serves under the name {name!r}. End it, or choose another name."
        ) from None
    try:
        server = Server(loader, listener, patience, needed)
    except BaseException:
        listener.close()
        raise
    _lent.append(server)
    failure = None
    try:
        if on_start is not None:
            on_start()
        server.serve()
    except Exception as error:
        failure = error
        raise
    finally:
        server.close(failure)
