"""How a server and its readers find each other: an abstract name for each user, and a socket that accepts them.

An abstract name is nobody's property: another user may listen on it, or come first.  So each end asks the kernel who
the other one is before it reads a message.  Messages are pickles, because they go among processes of one user only.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct

BATCH, OVER, FAILED, DROPPED, BESIDE = range(5)  # kinds of messages: a tuple's first item, and the second is its number
TAKEN = 1 << 63  # is added to a number that is not sent back, but says that the reader shares the slot from now on
LEAVES = (1 << 64) - 1  # sent back in place of a number by a reader that takes nothing more, and still shares slots
MOST_BYTES = 107  # of an abstract name, which the kernel limits


def address_of(name: str) -> str:
    """The abstract name of the server that this user gave this name.

    Raises:
        ValueError: It is none, or too long.
    """
    before = f"shmloader/serve/{os.geteuid()}/"
    if not isinstance(name, str) or not name or len(os.fsencode(before + name)) > MOST_BYTES:
        raise ValueError(
            f"name should be a text of 1 to {MOST_BYTES - len(before)} bytes, but got name={name!r}. The kernel keeps "
            f"{MOST_BYTES} bytes of it, the user's number included. Choose another name."
        )
    return "\0" + before + name


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """The process at the other end, and a descriptor that is readable when it has ended; -1: there is none.

    Raises:
        PermissionError: It is another user's.
        ProcessLookupError: It is gone, or in another pid namespace.
    """
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        raise PermissionError(
            f"The process at the other end (pid {pid}) is user {uid}'s, and this one is user {os.geteuid()}'s. Batches "
            "are shared among processes of one user. Run both as the same user."
        )
    if pid <= 0:
        raise ProcessLookupError("The process at the other end is not in this pid namespace. Run both in the same one.")
    try:
        return pid, os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # a sandbox refuses it, or no descriptor is left: then only the socket tells
        return pid, -1


def connect_to(name: str) -> socket.socket:
    """Connect to the server of this name.

    Raises:
        ConnectionError: There is none.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(address_of(name))
        return sock
    except ConnectionRefusedError:
        sock.close()
        raise nobody(name) from None
    except BaseException:
        sock.close()
        raise


def nobody(name: str) -> ConnectionError:
    """The error if nobody serves under a name."""
    return ConnectionError(
        f"No server named {name!r} runs for user {os.geteuid()} in this network namespace. Start one with "
        f"`shmloader serve MODULE:FUNCTION --name {name}`."
    )


class Listener:
    """Accepts connections.  If this process may open no more files, it refuses them, with the reason.

    Otherwise a connection would stay in the queue: the server would be woken for it again and again, and the process
    at the other end would wait for ever.

    Raises:
        OSError: EADDRINUSE: somebody else listens at this address.
    """

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.register_at_fork(after_in_child=self.sock.close)  # otherwise workers keep the name when the server has died
        try:
            self.sock.bind(address)
            self.sock.listen(64)
        except BaseException:
            self.sock.close()
            raise
        self._reserve = _reserved()  # a descriptor to accept a connection with that is refused

    def accept(self) -> socket.socket | None:
        """The next connection; None: it was refused, or is gone."""
        try:
            return self.sock.accept()[0]
        except OSError as error:
            why = pickle.dumps((FAILED, 0, f"The server cannot accept another reader: {error}"))
        if self._reserve >= 0:
            os.close(self._reserve)
        with contextlib.suppress(OSError), self.sock.accept()[0] as sock:
            sock.send(why)
        self._reserve = _reserved()
        return None

    def close(self) -> None:
        """Accept nothing more."""
        self.sock.close()
        if self._reserve >= 0:
            os.close(self._reserve)
        self._reserve = -1


def _reserved() -> int:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
