"""Where a far worker knocks: a listening socket that refuses whoever does not prove in time that it knows the secret.
Strangers are heard one after another, so a silent one holds up the far worker for PATIENCE.
A stand-in also leaves a note here on why it has lost its far worker.

The trainer opens the socket, and keeps it while its stand-in uses it.  So a stand-in that takes another one's place
listens on the same port, and the far worker finds it there.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
import warnings
import weakref
from multiprocessing import reduction
from typing import Any

from shmloader.far.link import CLOSED, GREETING, NONCE, PROOF, Gone, Leave, Link, far_proof, is_proof, near_proof, nonce
from shmloader.far_workers import Ticket
from shmloader.system import anonymous_files

PATIENCE = 5.0  # seconds that a stranger has to prove that it is none
BACKLOG = 16  # connections that wait until they are heard
LONGEST_NOTE = 1 << 12  # bytes
LONGEST_NODE = 64  # bytes of a machine's name
NODE = "shmloader_far"  # the name of the memory, by which `shmloader top` finds it
_BEGUN, _NOTHING = struct.Struct("<Q"), (1 << 64) - 1  # how a note begins, after the machine's name


def node_in(memory: int) -> str:
    """The machine that is named in a stand-in's memory, of which this is a descriptor; empty if none is."""
    name = os.pread(memory, LONGEST_NODE, 0).rstrip(b"\0").decode(errors="replace")
    return "".join(each if each.isprintable() else "?" for each in name)


class Door:
    """The near end of one far worker's way to its stand-in.

    Args:
        host: The address to listen on.
        number: Which worker of the ring the far worker is.
        workers: How many workers the ring has.
        secret: The far worker has to know it.
        heartbeat: How many seconds a far worker that makes a batch may give no sign of life.
        in_flight: How many batches the far worker is asked for at once.

    Attributes:
        ticket: What the far worker needs.

    Raises:
        OSError: The address is not this machine's, or no descriptor is left.
    """

    def __init__(
        self,
        host: str,
        number: int,
        workers: int,
        secret: bytes,
        heartbeat: float,
        in_flight: int = 1,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._stop, self._leave = socket.socketpair()
        self._note = anonymous_files.memory(NODE)
        self.ticket = Ticket(host, self._listener.getsockname()[1], number, workers, secret)
        self.heartbeat = heartbeat
        self.in_flight = in_flight
        self._refused: set[str] = set()
        _made_here.add(self)

    # ----------------------------------------------------------------------------------------------- the trainer's end

    def close(self) -> None:
        """Let nobody in any more, and have the stand-in leave.  Called again, it does nothing.

        By shutdown() and not by close() alone, because other processes may have copies of the descriptors.
        """
        for end in (self._listener, self._stop):
            with contextlib.suppress(OSError):  # it is closed already
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._leave.close()

    def drop(self) -> None:
        """Close this process's copies of the descriptors, and nothing of the other processes'."""
        for end in (self._listener, self._stop, self._leave):
            end.close()
        self.close_note()

    def close_note(self) -> None:
        """Give the memory of the note back."""
        if self._note >= 0:
            os.close(self._note)
            self._note = -1

    def note(self) -> tuple[str, int | None]:
        """What the stand-in wrote before it ended, and the sequence that the far worker was making.

        The text is empty if it wrote nothing.  The sequence is None if the far worker had begun nothing.
        """
        if self._note < 0 or not (noted := os.pread(self._note, _BEGUN.size + LONGEST_NOTE, LONGEST_NODE)):
            return "", None
        (begun,) = _BEGUN.unpack(noted[: _BEGUN.size])
        return noted[_BEGUN.size :].decode(errors="replace"), None if begun == _NOTHING else begun

    def node(self) -> str:
        """The machine of the far worker; empty if there is none now."""
        with contextlib.suppress(OSError):  # another thread has closed it since this one looked
            return "" if self._note < 0 else node_in(self._note)
        return ""

    def forget_note(self) -> None:
        """Another stand-in begins."""
        os.ftruncate(self._note, 0)

    # ---------------------------------------------------------------------------------------------- the stand-in's end

    def write_note(self, text: str, begun: int | None = None) -> None:
        """Say why this process ends, and what the far worker had begun."""
        noted = _BEGUN.pack(_NOTHING if begun is None else begun) + text.encode(errors="replace")[:LONGEST_NOTE]
        os.pwrite(self._note, noted, LONGEST_NODE)

    def write_node(self, name: bytes) -> None:
        """Say on which machine the far worker is."""
        os.pwrite(self._note, name[:LONGEST_NODE], 0)

    def admit(self) -> Link | None:
        """Wait for the far worker; None if this process is to leave.

        Who does not prove that it knows the secret is refused, with a warning once for each reason.
        """
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._leave, select.POLLIN)
        while all(fd != self._leave.fileno() for fd, _ in poll.poll()):
            try:
                sock, address = self._listener.accept()
            except OSError:
                continue  # it is gone again, or the door is being closed
            link = Link(sock, PATIENCE, self._leave.fileno())
            link.until = time.monotonic() + PATIENCE  # for the whole proof, byte by byte
            try:
                if self._is_far_worker(link):
                    link.patience, link.until = self.heartbeat, None
                    return link
                why = "it does not know this loader's secret"
            except Gone as gone:
                why = str(gone)
            except Leave:
                break
            link.reset()
            if why not in (CLOSED, *self._refused):  # it may also have given up, or be a scanner of ports
                self._refused.add(why)
                warnings.warn(
                    f"far worker {self.ticket.number}'s port {self.ticket.port} refused a connection from "
                    f"{address[0]}: {why}. No byte of it was read as anything else. The loader goes on.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return None

    def _is_far_worker(self, link: Link) -> bool:
        """Prove that this end knows the secret, once the other one has.  Raises: see Link."""
        ticket, ours = self.ticket, nonce()
        link.send(GREETING, ours)
        theirs, shown = bytes(link.receive(NONCE)), bytes(link.receive(PROOF))
        if not is_proof(shown, far_proof(ticket.secret, ticket.number, ours, theirs)):
            return False
        link.send(near_proof(ticket.secret, ticket.number, ours, theirs))
        return True

    # ------------------------------------------------------------------------------------------- from one to the other

    def __getstate__(self) -> dict[str, Any]:
        state = {
            key: value for key, value in vars(self).items() if key not in ("_listener", "_stop", "_leave", "_note")
        }
        fds = self._listener.fileno(), self._leave.fileno(), self._note
        state["fds"] = [reduction.DupFd(fd) for fd in fds]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        listener, leave, note = (fd.detach() for fd in state.pop("fds"))
        vars(self).update(state)
        self._listener, self._leave = socket.socket(fileno=listener), socket.socket(fileno=leave)
        self._listener.setblocking(False)
        self._note = note


_made_here: weakref.WeakSet[Door] = weakref.WeakSet()


def _drop_copies() -> None:
    """In a forked child of the trainer: drop its doors.

    If the trainer is killed, the child would keep them open.  Then a far worker's connection would be accepted by the
    kernel, and the far worker would wait for a greeting for as long as the child lives.
    """
    for door in [*_made_here]:
        door.drop()
    _made_here.clear()


os.register_at_fork(after_in_child=_drop_copies)
