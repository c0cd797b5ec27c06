"""A network that is slow: a process between far workers and their stand-ins that holds back each byte."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection

from shmloader.far_workers import Ticket

PIECE = 1 << 20  # bytes
HELD = 256  # pieces that are on their way in one direction


class _Line:
    """One direction of a network that all connections share.  Bytes pass one after another.

    Args:
        bandwidth: Bytes a second; None: as many as come.
    """

    def __init__(self, bandwidth: float | None) -> None:
        self._bandwidth = bandwidth
        self._free = 0.0
        self._lock = threading.Lock()

    def carry(self, size: int) -> None:
        """Return when this many bytes have passed.  They wait until all earlier bytes have passed."""
        if self._bandwidth is None:
            return
        with self._lock:
            self._free = passed = max(self._free, time.monotonic()) + size / self._bandwidth
        time.sleep(max(0.0, passed - time.monotonic()))


def between(tickets: list[Ticket], seconds: float, found: Connection, bandwidth: float | None = None) -> None:
    """Listen for far workers, and pass on what either side sends after so many seconds, in a process of its own.

    Args:
        tickets: Of the far workers.
        seconds: How long a byte takes, in each direction.
        found: Gets the tickets with which far workers come here.
        bandwidth: Bytes a second in each direction, of all far workers together; None: no limit.
    """
    lines = _Line(bandwidth), _Line(bandwidth)
    changed = []
    for ticket in tickets:
        listener = socket.create_server((ticket.host, 0))
        changed.append(replace(ticket, port=listener.getsockname()[1]))
        threading.Thread(target=_accept, args=(listener, ticket, seconds, lines), daemon=True).start()
    found.send(changed)
    threading.Event().wait()


def _accept(listener: socket.socket, ticket: Ticket, seconds: float, lines: tuple[_Line, _Line]) -> None:
    while True:
        far, _ = listener.accept()
        try:
            near = socket.create_connection((ticket.host, ticket.port))
        except ConnectionRefusedError:
            far.close()
            continue
        for source, to, line in zip((far, near), (near, far), lines, strict=True):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(HELD)
            threading.Thread(target=_read, args=(source, pieces, seconds, line), daemon=True).start()
            threading.Thread(target=_write, args=(to, pieces), daemon=True).start()


def _read(source: socket.socket, pieces: queue.Queue[tuple[float, bytes]], seconds: float, line: _Line) -> None:
    data = b"first"
    while data:
        try:
            data = source.recv(PIECE)
        except OSError:
            data = b""
        line.carry(len(data))  # nothing more is read meanwhile, so the sender is held back too
        pieces.put((time.monotonic() + seconds, data))


def _write(to: socket.socket, pieces: queue.Queue[tuple[float, bytes]]) -> None:
    with contextlib.suppress(OSError):  # the other end is gone
        while True:
            due, data = pieces.get()
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if not data:
                to.shutdown(socket.SHUT_RDWR)
                return
            to.sendall(data)
