"""Accepts the processes that connect to read a loader's batches, or refuses them because no descriptor is left."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket

from shmloader.readers.wire import Wire, end_listening


class Listener:
    """Accepts connections.  If this process may open no more files, it refuses them, with the reason.

    Otherwise a connection would stay in the queue.  The thread that accepts would be woken for it again and again, and
    the process at the other end would wait for ever.

    Args:
        sock: A socket that listens.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reserve = _reserved()  # a descriptor to accept a connection with that is refused

    def fileno(self) -> int:
        """The descriptor that is readable when a process connects."""
        return self._sock.fileno()

    def accept(self) -> Wire | None:
        """The next connection; None: it was refused, or is gone."""
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            self._refuse_next(error)
            return None
        try:
            return Wire(sock)
        except (PermissionError, ProcessLookupError):  # another user's, or gone
            sock.close()
        except OSError as error:
            _refuse(sock, error)
        return None

    def _refuse_next(self, error: OSError) -> None:
        if self._reserve >= 0:
            os.close(self._reserve)
        try:
            with contextlib.suppress(OSError):
                sock, _ = self._sock.accept()
                _refuse(sock, error)
        finally:
            self._reserve = _reserved()

    def close(self) -> None:
        """Accept nothing more.  Twice does no harm."""
        end_listening(self._sock)
        if self._reserve >= 0:
            os.close(self._reserve)
        self._reserve = -1


def _reserved() -> int:
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _refuse(sock: socket.socket, error: OSError) -> None:
    with sock, contextlib.suppress(OSError):
        refused = f"The process that provides these batches cannot accept another reader: {error}"
        sock.send(pickle.dumps({"refused": refused}))
