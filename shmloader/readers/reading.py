"""A reader's end: it makes batches of the server's messages, and raises if the server has ended or has dropped it.

A signal's handler may raise at any call.  A message stays in the queue until it was used, and a batch in `_ready` until
next() returns it, so the next call continues there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from shmloader.batch.exceptions import caught, raise_again
from shmloader.core.batch_reader import BatchReader
from shmloader.core.ring import Mapping
from shmloader.core.served_side import VERSION, ServedSide
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.readers.connection import BATCH, BESIDE, DROPPED, LEAVES, OVER, connect_to, nobody, peer_of
from shmloader.ring.growth import Geometry
from shmloader.system.cleanup import in_del
from shmloader.system.signals import held


class _Memory:
    """The server's memory, mapped here."""

    memfd = -1

    def __init__(self, geometry: Geometry, fd: int) -> None:
        self.geometry = geometry
        try:
            self.mapping = Mapping(fd, geometry.mapped)
        except OSError as error:
            raise MemoryError(
                f"this process cannot map {geometry.mapped} bytes of the server's memory: {error.strerror}. Raise the "
                "limit of its address space (ulimit -v)."
            ) from None


def _received(receive: Callable[[], Any]) -> Any:
    """What a call that receives returns.  It is called again after an error by which the kernel says that the other end
    has closed and not read all: what that end had sent comes behind the error.
    """
    try:
        return receive()
    except ConnectionResetError:
        return receive()


class Reading:
    """The iterator of a process that reads a served loader.

    Args:
        name: The server's.
        join: With which batch it begins: attach().
        copies: Whether batches are copied into this process.

    Attributes:
        length: The batches of an epoch; None: that is not known.
        state: The state of the server's loader after the batch that next() returned last, pickled.
        closed: Whether it has left the server, or the server has ended.

    Raises:
        ConnectionError: There is no such server.
        RuntimeError: It refuses this process, with the reason.
    """

    closed = True

    def __init__(self, name: str, join: str, copies: bool) -> None:
        self._name = name
        self._copies = copies
        self._reader = BatchReader(ExceptionWrapper)
        self._taking = threading.Lock()  # threads that share this iterator take one after the other
        self._taker = 0  # the thread that takes
        self._ready: list[tuple[Any, bytes, bool]] = []  # what next() returns, the state after it, whether it raises
        self._used = 0  # the number of the last message that was used, which may still be in the queue
        self._began = False  # it has had a message of the epoch that is under way
        self._leaves = False  # it drops what is left of that epoch
        self._ended = False  # and has come to its end
        with connect_to(name) as sock:
            with contextlib.suppress(ConnectionError):  # it has refused this process, and its answer can be read
                sock.send(pickle.dumps({"version": VERSION, "join": join, "shares": not copies}))
            if not _received(lambda: sock.recv(1, socket.MSG_PEEK)):  # handlers of signals run in this wait
                raise nobody(name)
            with held():  # otherwise a handler that raises may leave a descriptor
                self._greet(sock)
        self.closed = False

    def _greet(self, sock: socket.socket) -> None:
        text, fds, _, _ = _received(lambda: socket.recv_fds(sock, 1 << 20, 2))
        try:
            self._pid, death = peer_of(sock)
            fds.append(death)
            greeting = pickle.loads(text)
            if isinstance(greeting, tuple):
                raise RuntimeError(greeting[2])
            if len(fds) < 3:
                raise RuntimeError("A descriptor of the server's was lost. Raise the limit of open files (ulimit -n).")
            self._kept: int = greeting["kept"]
            self.length: int | None = greeting["length"]
            self.state: bytes = greeting["state"]
            self._side = ServedSide(_Memory(greeting["geometry"], fds[0]), sock, fds[1], death)
        finally:
            for fd in fds:
                if fd >= 0:
                    os.close(fd)

    def begin(self) -> None:
        """Begin the next epoch: drop what is left of this one, if it has begun."""
        self._leaves = self._began
        self._ready.clear()
        self._ended = False

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Any:
        ready = self._ready
        while not ready:
            self._take()
        # Signals are handled, and threads change, at calls and loops.  None is from here to the caller's own code.
        batch, self.state, raises = ready[0]
        if raises:
            self._raise(batch)
        del ready[0]
        return batch

    def _raise(self, wrapped: Any) -> NoReturn:
        try:
            raise_again(wrapped)
        except Exception:
            self._ready.clear()
            raise

    def _take(self) -> None:
        """Use the next message.

        Raises:
            StopIteration: The epoch is over, or this iterator was closed.
            RuntimeError: The server has ended, has raised, or has dropped this reader; or this thread is in here.
        """
        me = threading.get_ident()
        if self._taker == me:
            raise RuntimeError(
                "next() was called while this thread is in next() of the same iterator. The call came from a signal "
                "handler. Set a flag there, and call next() in your loop."
            )
        with self._taking:
            self._taker = me
            try:
                if not self._ready:  # otherwise another thread has taken one
                    self._use_next()
            finally:
                self._taker = 0

    def _use_next(self) -> None:
        if self._ended or self.closed:
            raise StopIteration
        text = self._side.receive()
        if text is None:
            self._end()
        kind, number, *said = pickle.loads(text)
        if kind == BESIDE:
            kind, number, *said = pickle.loads(self._side.text_beside(*said))
        if kind not in (BATCH, OVER):
            self.close()
            raise RuntimeError(f"{said[0]} (the server of {self._name!r}, pid {self._pid})")
        if number == self._used:  # a handler has raised before it was taken from the queue
            self._side.took(number if kind == OVER else 0)
        elif kind == OVER:
            self._come_to_end(number, *said)
        elif self._leaves:
            self._side.took(number)
        else:
            self._make(number, *said)

    def _come_to_end(self, number: int, state: bytes) -> None:
        """The epoch is over.  One that has begun before this reader joined, and gave it nothing, is passed over."""
        if self._began and not self._leaves:
            self.state = state
            self._ended = True
        self._used, self._began, self._leaves = number, False, False
        self._side.took(number)

    def _make(self, number: int, state: bytes, copies: bool, *said: Any) -> None:
        """Make a batch, and keep it until next() returns it."""
        self._began = was_lent = True
        back = 0
        try:
            copies = copies or self._copies or self._side.shared >= self._kept
            lease, was_lent = self._side.lease(number, copies, *said)
            batch = self._reader.read(lease, False)
            del lease
        except Exception:
            batch, back = caught("in a reader, where a batch was read"), number
        if not was_lent and self._was_dropped():  # the slot may have been filled again while it was copied
            return
        made = batch, state, type(batch) is ExceptionWrapper
        self._used = number  # in one step with the next call, which is C code
        self._ready.append(made)
        self._side.took(back)

    def _was_dropped(self) -> bool:
        """Whether the server has dropped this reader; then all messages before that one are passed over."""
        kinds = [pickle.loads(text)[0] for text in self._side.messages()]
        if DROPPED not in kinds:
            return False
        for _ in range(kinds.index(DROPPED)):
            self._side.took()
        return True

    def _end(self) -> NoReturn:
        if self.closed:
            raise StopIteration
        self.close()
        raise RuntimeError(
            f"The server of {self._name!r} (pid {self._pid}) has ended. All batches that it had sent were read. Look "
            "at its output for the reason, start it again, and iterate again."
        )

    def close(self) -> None:
        """Take nothing more.  Batches that were delivered stay as they are."""
        if self.closed:
            return
        self.closed = True
        if self._side.shared:  # the connection ends with the last batch that lies in the server's memory
            self._side.took(LEAVES)
        else:
            self._side.close()

    @in_del
    def __del__(self) -> None:
        self.close()
