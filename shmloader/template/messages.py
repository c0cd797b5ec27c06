"""The messages between the trainer and its template process.

A message is a packet with the length of its body, followed by packets with descriptors.  The first descriptor is a file
in memory that holds the body, because a body may not fit into a packet.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
from typing import NamedTuple

LOAD, FORK = 1, 2
FORKED, REFUSED, THREADS = 1, 2, 3  # the answers to a request to fork
UNKNOWN = 255  # the exit code of a process whose end nobody reports, as under forkserver
AT_ONCE = 200  # descriptors in a packet; the kernel takes 253
LONGEST = 32 << 10  # bytes of a text that a packet carries

_HEADER = struct.Struct("=iii")  # kind, whether the worker outlives signals, descriptors
_ANSWER = struct.Struct("=ii")  # the answer, and a pid or an errno
_CODE = struct.Struct("=i")


class Request(NamedTuple):
    """A message of the trainer's."""

    kind: int
    outlives: bool
    descriptors: list[int]  # the first is the body's
    lost: bool  # whether there are fewer than were sent, because this process may open no more files


def send_request(channel: socket.socket, kind: int, outlives: bool, descriptors: list[int]) -> None:
    """Send a message, with copies of these descriptors.  The first one is the body's.

    Raises:
        OSError: The template process is gone.
    """
    packet = _HEADER.pack(kind, outlives, len(descriptors))
    for first in range(0, len(descriptors), AT_ONCE):
        socket.send_fds(channel, [packet], descriptors[first : first + AT_ONCE])


def receive_request(channel: socket.socket) -> Request | None:
    """The next message; the caller closes its descriptors.  None: the trainer has ended the template."""
    descriptors: list[int] = []
    sent, lost = 0, False
    while True:
        packet, received, flags, _ = socket.recv_fds(channel, _HEADER.size, AT_ONCE, socket.MSG_CMSG_CLOEXEC)
        descriptors += received
        if not packet:
            close_all(descriptors)
            return None
        kind, outlives, count = _HEADER.unpack(packet)
        sent += min(AT_ONCE, count - sent)
        lost = lost or bool(flags & socket.MSG_CTRUNC)
        if sent == count:
            break
    return Request(kind, bool(outlives), descriptors, lost)


def send_text(channel: socket.socket, text: str) -> None:
    """Send a line with one word, and further text.  A long text loses its beginning, because its end matters most."""
    word, line, rest = text.encode(errors="replace").partition(b"\n")
    channel.send(word + line + rest[-(LONGEST - len(word) - 1) :])


def receive_text(channel: socket.socket) -> str:
    """The text that send_text() sent; empty if the other process is gone."""
    try:
        return channel.recv(LONGEST).decode(errors="replace")
    except ConnectionError:
        return ""


def answer(channel: int, how: int, number: int, death: int | None = None) -> None:
    """Answer a request to fork.

    Args:
        channel: The descriptor of the worker's channel.
        how: FORKED, REFUSED or THREADS.
        number: The worker's pid, or the number of an error.
        death: A descriptor that becomes readable when the worker ends.
    """
    given = [] if death is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [death]))]
    with _as_socket(channel) as end, contextlib.suppress(ConnectionError):  # the trainer may have closed its end
        end.sendmsg([_ANSWER.pack(how, number)], given)


def receive_answer(channel: int) -> tuple[int, int, int]:
    """The answer to a request to fork: FORKED, REFUSED or THREADS, a number, and a descriptor or -1.

    Raises:
        EOFError: The template process is gone.
        OSError: EMFILE: this process may open no more files.
    """
    with _as_socket(channel) as end:
        try:
            packet, received, flags, _ = socket.recv_fds(end, _ANSWER.size, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            packet = b""
        if not packet:
            raise EOFError("its channel is closed")
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        how, number = _ANSWER.unpack(packet)
        return how, number, received[0] if received else -1


def is_closed(channel: int) -> bool:
    """Whether the other end of a worker's channel is closed."""
    poll = select.poll()
    poll.register(channel, 0)
    return bool(poll.poll(0))


def send_code(channel: int, code: int) -> None:
    """Report the exit code of a worker."""
    with contextlib.suppress(OSError):  # the trainer may have closed its end
        os.write(channel, _CODE.pack(code))


def receive_code(channel: int) -> int | None:
    """The exit code of a worker; None if the template process ended without sending one.

    The message stays in the socket, because two threads may ask at once.
    """
    with _as_socket(channel) as end:
        try:
            packet = end.recv(_CODE.size, socket.MSG_PEEK)
        except ConnectionError:
            return None
    return int(_CODE.unpack(packet)[0]) if packet else None


def close_all(descriptors: list[int]) -> None:
    """Close descriptors."""
    for fd in descriptors:
        os.close(fd)


@contextlib.contextmanager
def _as_socket(fd: int):  # type: ignore[no-untyped-def]
    end = socket.socket(fileno=fd)
    try:
        yield end
    finally:
        end.detach()
