"""Messages between a conductor and a reader, with descriptors, over a Unix socket.
Each end refuses a process of another user.

An abstract name is nobody's property: another user may listen on it, or come first.  So each end asks the kernel who
the other one is before it reads a message.  Messages are pickles, because they go among processes of one user only.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import socket
import struct
from array import array
from collections.abc import Iterator
from typing import Any

from shmloader.core.late_signals import in_del
from shmloader.system import nameless
from shmloader.system.sandboxes import is_refusal, refused
from shmloader.system.signals import held

_MOST = 1 << 14  # bytes of a message in the socket; a longer one lies in memory of its own, whose descriptor goes
_IN_MEMORY = b"m"  # in place of one that does.  No pickle is this
_FDS = 4  # descriptors beside one, at most
_PEERPIDFD = 77  # SO_PEERPIDFD, Linux 6.5


class NoDescriptorLeftError(RuntimeError):
    """This process may open no more files; the text says how many it may open."""


class Wire:
    """One end of a connection.

    Args:
        sock: A SOCK_SEQPACKET socket that is connected.

    Attributes:
        pid: The process at the other end.
        death: A descriptor that becomes readable when that process ends.

    Raises:
        PermissionError: It is another user's.
        ProcessLookupError: It is gone, or in another pid namespace.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.death = -1
        self.pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise PermissionError(
                f"The process at the other end (pid {self.pid}) is user {uid}'s, and this one is user "
                f"{os.geteuid()}'s. Batches are shared among processes of one user. Run both as the same user."
            )
        if self.pid <= 0:
            raise ProcessLookupError(
                "The process at the other end is not in this pid namespace. Run both in the same one."
            )
        with held():  # otherwise a signal's handler may raise before the descriptor has an owner
            self.death = _death_of(sock, self.pid)

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a message of any size, now.

        Raises:
            BlockingIOError: The other end reads nothing.
            ConnectionError: It is gone.
            OSError: No descriptor or no memory is left.
        """
        data = pickle.dumps(message)
        if len(data) <= _MOST:
            self._send(data, fds)
            return
        memory = nameless.memory("shmloader_message")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.write(data)
            self._send(_IN_MEMORY, (*fds, memory))
        finally:
            os.close(memory)

    def _send(self, data: bytes, fds: tuple[int, ...]) -> None:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        self.sock.sendmsg([data], beside, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def receive(self, wait: bool = False) -> tuple[dict[str, Any] | None, list[int]]:
        """The next message and its descriptors; None: the other end has closed.

        Raises:
            BlockingIOError: There is none now.
            NoDescriptorLeftError: This process may open no more files, so a descriptor of the message is lost.
        """
        flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)  # which socket.recv_fds drops
        try:
            data, beside, found, _ = self.sock.recvmsg(_MOST, socket.CMSG_LEN(4 * _FDS), flags)
        except ConnectionError:  # the other end has closed and not read all; what it had sent comes behind this error
            try:
                data, beside, found, _ = self.sock.recvmsg(_MOST, socket.CMSG_LEN(4 * _FDS), flags)
            except ConnectionError:
                return None, []
        fds = array("i")
        for level, kind, content in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) // fds.itemsize * fds.itemsize])
        if found & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise NoDescriptorLeftError(
                "A descriptor that came was lost, because this process may open no more files than "
                f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} (ulimit -n). Close some, or raise the limit, and "
                "attach again."
            )
        if data == _IN_MEMORY and fds:
            with open(fds.pop(), "rb") as file:
                file.seek(0)  # the sender has written, and both have one place in the file
                data = file.read()
        return (pickle.loads(data) if data else None), list(fds)

    def is_writable(self) -> bool:
        """Whether at most a quarter of this end's memory holds messages that the other end has not received."""
        poll = select.poll()
        poll.register(self.sock, select.POLLOUT)
        return bool(poll.poll(0))

    def is_dead(self, seconds: float = 0) -> bool:
        """Whether the process at the other end has ended, or does within this time."""
        poll = select.poll()
        poll.register(self.death, select.POLLIN)
        return bool(poll.poll(int(1000 * seconds)))

    def close(self) -> None:
        """Close this end.  Twice does no harm."""
        with held(), contextlib.suppress(OSError):  # a handler's TimeoutError is an OSError, too
            self.sock.shutdown(socket.SHUT_RDWR)  # also where a process that was forked meanwhile has it
        self.sock.close()
        death, self.death = self.death, -1
        if death >= 0:
            os.close(death)

    @in_del
    def __del__(self) -> None:
        if os is not None and getattr(self, "death", -1) >= 0:  # a signal's handler has raised before it was used
            death, self.death = self.death, -1  # in a cycle, close() may come after this
            os.close(death)


def _death_of(sock: socket.socket, pid: int) -> int:
    with contextlib.suppress(OSError):
        return sock.getsockopt(socket.SOL_SOCKET, _PEERPIDFD)
    return death_of(pid)


def death_of(pid: int) -> int:
    """A descriptor that becomes readable when a process ends.

    Raises:
        OSError: The process is gone; no descriptor is left; or a sandbox refuses pidfd_open.
    """
    with _naming("pidfd_open"):
        return os.pidfd_open(pid)


def bell() -> int:
    """A descriptor that wakes a thread which polls it, by os.eventfd_write().

    Raises:
        OSError: No descriptor is left; or a sandbox refuses eventfd.
    """
    with _naming("eventfd"):
        return os.eventfd(0, os.EFD_CLOEXEC)


@contextlib.contextmanager
def _naming(call: str) -> Iterator[None]:
    """If a sandbox refuses a system call, the error names it."""
    try:
        yield
    except OSError as error:
        if not is_refusal(error):
            raise
        raise OSError(error.errno, f"{refused(call, error)}, or leave readers= out.") from None


def listen_at(name: str) -> socket.socket:
    """A socket that listens at an abstract name.

    Raises:
        OSError: EADDRINUSE: somebody else does.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind("\0" + name)
        sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return sock


def end_listening(sock: socket.socket) -> None:
    """Close a socket of listen_at(), and all connections that nobody has accepted.  Twice does no harm.

    A process that was forked from this one may keep the socket open.  Without these calls, others could still connect
    to it, and would wait for an answer for ever.
    """
    with held(), contextlib.suppress(OSError):  # a handler's TimeoutError is an OSError, too
        sock.shutdown(socket.SHUT_RDWR)
        while True:  # until none is left, which is an OSError
            sock.accept()[0].close()
    sock.close()


def connect_to(name: str) -> Wire:
    """Connect to the process that listens at an abstract name.

    Raises:
        ConnectionRefusedError: Nobody does.
        PermissionError: See Wire.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect("\0" + name)
        wire = Wire(sock)
        if wire.is_dead():  # its workers, which are about to end, have the socket as well
            wire.close()
            raise ConnectionRefusedError(f"The process that listened at {name} (pid {wire.pid}) has ended.")
        return wire
    except ProcessLookupError:
        sock.close()
        raise ConnectionRefusedError(f"The process that listened at {name} has ended.") from None
    except BaseException:
        sock.close()
        raise
