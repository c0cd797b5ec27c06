"""One end of an authenticated connection: sends, and receives an exact number of bytes, with a limit on silence.
Both ends prove that they know the secret, before either parses a byte of the other.

The near end (the stand-in, which listens) sends a greeting, with the version of the protocol, and a nonce.  The far end
answers with a nonce of its own and an HMAC of both, and the near end with another HMAC.  All three messages have a
fixed length.  The words "near" and "far" are part of what is hashed, so neither end's proof can be sent back to it.

door.py asks for the far end's proof, and refuses whoever has none.  What comes after the proof is checked in frames.py.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import struct
import time

from shmloader.system.cleanup import ClosedByWith

MOST_AT_ONCE = 4 << 20  # bytes of one call, so that Ctrl-C and the end are seen in between
AWAITED = 1 << 20  # bytes that a large receive sleeps for: 38 MB take a third less CPU than if each segment wakes it
CLOSED = "it closed the connection"
GREETING = b"shmfar\x00\x06"  # with the version of the protocol
NONCE = 32
PROOF = 32
IDLE, AGAIN, PROBES = 10, 5, 3  # seconds until the kernel asks whether the other machine is there, and how often


class Gone(Exception):
    """The other end closed the connection, or was silent for too long; the text says which."""


class Leave(Exception):
    """This end was asked to leave."""


class Link(ClosedByWith):
    """A connection.

    Args:
        sock: A connected TCP socket.
        patience: How many seconds it may take until the other end sends or takes a byte; None: any number.
        leave: A descriptor that becomes readable when this end is to leave; -1: none.

    Attributes:
        patience: See above.
        until: When its patience ends at the latest, whatever has come until then, by time.monotonic(); None: never.
    """

    until: float | None = None

    def __init__(self, sock: socket.socket, patience: float | None, leave: int = -1) -> None:
        self._sock = sock
        self.patience = patience
        self._leave = leave
        sock.setblocking(True)  # each call says whether it waits
        tune(sock)
        self._polls = {wanted: self._poll_for(wanted) for wanted in (select.POLLIN, select.POLLOUT)}

    def _poll_for(self, wanted: int) -> select.poll:
        poll = select.poll()
        poll.register(self._sock, wanted)
        if self._leave >= 0:
            poll.register(self._leave, select.POLLIN)
        return poll

    def fileno(self) -> int:
        """Its descriptor."""
        return self._sock.fileno()

    def receive_into(self, view: memoryview) -> None:
        """Fill a view of bytes.

        Raises:
            Gone: The other end is gone, or nothing came for `patience` seconds.
            Leave: This end is to leave.
        """
        if len(view) < AWAITED:
            self._receive_into(view, 1)
            return
        try:
            self._receive_into(view, AWAITED)
        finally:
            self._awaited(1)

    def _receive_into(self, view: memoryview, many: int) -> None:
        at, size, awaited = 0, len(view), 1
        while at < size:
            try:
                got = self._sock.recv_into(view[at : at + MOST_AT_ONCE], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if awaited != (wanted := min(many, size - at)):
                    awaited = wanted
                    self._awaited(wanted)
                try:
                    self._wait(select.POLLIN)
                except Gone:
                    if awaited == 1:
                        raise
                    self._awaited(1)
                    if not self._polls[select.POLLIN].poll(0):
                        raise
                    many = awaited = 1  # it is slow, but some bytes came: from here on each of them counts
                continue
            except (ConnectionResetError, BrokenPipeError):  # it had not read all that was sent
                raise Gone(CLOSED) from None
            except OSError as error:
                raise Gone(f"the connection broke: {error}") from None
            if not got:
                raise Gone(CLOSED)
            at += got

    def _awaited(self, count: int) -> None:
        """Have the kernel wake this process only when so many bytes are there, or the connection ends."""
        with contextlib.suppress(OSError):  # another thread has closed it, and the next call finds that out
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def receive(self, size: int) -> bytearray:
        """The next bytes.  Raises: see receive_into()."""
        data = bytearray(size)
        if size:
            self.receive_into(memoryview(data))
        return data

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send all parts, one after the other.

        Raises:
            Gone: The other end is gone, or took nothing for `patience` seconds.
            Leave: This end is to leave.
        """
        self._send(parts, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def send_without_end(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send all parts, in as few calls of the kernel as that needs, and wait for as long as it takes.

        It is for a thread that sends while another one computes.  After each call, a thread has to wait until it gets
        the GIL again.

        Raises:
            Gone: The other end is gone.
        """
        self._send(parts, socket.MSG_NOSIGNAL)

    def _send(self, parts: tuple[bytes | bytearray | memoryview, ...], flags: int) -> None:
        left = [view for part in parts if len(view := memoryview(part).cast("B"))]
        while left:
            try:
                sent = self._sock.sendmsg(left, (), flags)
            except BlockingIOError:
                self._wait(select.POLLOUT)
                continue
            except (ConnectionResetError, BrokenPipeError):  # it had not read all that was sent
                raise Gone(CLOSED) from None
            except OSError as error:
                raise Gone(f"the connection broke: {error}") from None
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def _wait(self, wanted: int) -> None:
        ends = [] if self.patience is None else [time.monotonic() + self.patience]
        deadline = min(ends if self.until is None else [*ends, self.until], default=None)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._polls[wanted].poll(None if left is None else left * 1000)
            if any(fd == self._leave for fd, _ in ready):
                raise Leave
            if ready:
                return
            if left is not None and left <= 0.001:
                raise Gone(f"it gave no sign of life for {self.patience:g} seconds")

    def is_hung_up(self) -> bool:
        """Whether the other end has closed the connection, although this one may not have read all of it yet."""
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def hang_up(self) -> None:
        """End the connection, also for another thread that sends or receives."""
        with contextlib.suppress(OSError):  # the other end was quicker
            self._sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close it, because it was refused.  The other end gets a reset, and nothing of it lingers."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close it."""
        self._sock.close()


def tune(sock: socket.socket) -> None:
    """Send small requests at once, and have the kernel find out if the other machine is gone.

    There is no TCP_USER_TIMEOUT, because the kernel would close the connection of a trainer that Ctrl-Z has stopped.
    There is no SO_SNDBUF either: with it, the kernel would not enlarge the buffer itself, and could be allowed less.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, AGAIN)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def nonce() -> bytes:
    """Bytes that were never sent before."""
    return os.urandom(NONCE)


def far_proof(secret: bytes, number: int, near: bytes, far: bytes) -> bytes:
    """What the far end shows.

    Args:
        secret: The ticket's.
        number: The worker's, so that a far worker cannot take another one's place.
        near, far: The nonces.
    """
    return _proof(secret, b"far", number, near, far)


def near_proof(secret: bytes, number: int, near: bytes, far: bytes) -> bytes:
    """What the near end shows.  Args: see far_proof()."""
    return _proof(secret, b"near", number, near, far)


def is_proof(shown: bytes, expected: bytes) -> bool:
    """Compare in a time that does not depend on how many bytes are right."""
    return hmac.compare_digest(shown, expected)


def _proof(secret: bytes, end: bytes, number: int, near: bytes, far: bytes) -> bytes:
    return hmac.digest(secret, b"|".join([GREETING, end, str(number).encode(), near, far]), "sha256")
