"""The messages by which workers of a crew join and leave rings: NOTE [ Crew ], 4, in shared_workers.py.
It limits how many of them may be unread.

A worker reads a message between two batches.  While it makes a long one, messages pile up in its socket, and the kernel
takes some 280 of them.  It also limits how many descriptors of a user may be under way (as many as a process may open).
If a message were counted but not sent, the worker would wait for it for ever.  So only sent messages are counted:

    1. A ring that joins waits until the worker has room: it has read most of what was sent, and the kernel takes the
       descriptors.  Signals' handlers run meanwhile, so Ctrl-C ends the wait.
    2. A ring that parts never waits, since an iterator may end anywhere.  What does not fit is sent before the next
       message.
    3. The last message is the end of the socket, which always fits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable

from shmloader.core.board import Board
from shmloader.system import handed_over
from shmloader.system.handed_over import REST_IS_LOST, Channel, HandedOver, Packet
from shmloader.system.signals import let_through
from shmloader.worker.crew_loop import JOIN, PART

__all__ = ["Messages"]

UNHEARD = 64  # messages that a worker has not heard, when another ring joins; each of these rings may part as well
RETRY = 0.05  # seconds until the kernel is asked again
FULL = errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS


class Messages:
    """Sends messages to the workers of a crew, and counts them on its board.

    Args:
        board: The crew's.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._channels: list[Channel | None] = [None] * board.workers
        self._last = [0] * board.workers  # the number of the last message
        self._joins: list[dict[int, int]] = [{} for _ in range(board.workers)]  # by message, which ring
        self._unsent: list[list[int]] = [[] for _ in range(board.workers)]  # rings to part from
        self._parted: list[dict[int, int]] = [{} for _ in range(board.workers)]  # by ring, the message to part from it
        self._joining = [False] * board.workers  # whether a message is half sent; the collector may end iterators then

    # ------------------------------------------------------------------------------------------------- channels

    def close(self, index: int) -> None:
        """Close this worker's channel.  Twice is harmless."""
        channel, self._channels[index] = self._channels[index], None
        if channel is not None:
            channel.close()

    def renew(self, index: int) -> None:
        """Another process is this worker from now on, which is not started yet: nothing was sent to it."""
        self._board.renew(index)
        self._joins[index], self._unsent[index], self._parted[index] = {}, [], {}

    def open(self, index: int, channel: Channel) -> None:
        """This is the channel to the process that is this worker from now on."""
        self._channels[index] = channel

    # ------------------------------------------------------------------------------------------------- messages

    def join(self, index: int, ring: int, first: int, handed: HandedOver, runs: Callable[[], bool]) -> None:
        """Have a worker serve a ring.  To a dead worker nothing is sent.

        Args:
            index: The worker.
            ring: The ring's number.
            first: The sequence from which it serves it.
            handed: The descriptors and the pickle for the worker.
            runs: Whether the worker lives.

        Raises:
            OSError: The kernel takes no more descriptors, and none of this crew's are under way.
            BaseException: A signal's handler has raised.  Then the worker does not join.
        """
        if not self._wait_for_room(index, runs):
            return
        self._joining[index] = True
        try:
            self._send_all(index, ring, handed_over.packets(JOIN, ring, first, handed), runs)
        finally:
            self._joining[index] = False

    def joining(self, index: int) -> int | None:
        """The ring that a worker was about to join, or was joining: the next message that it receives is about that."""
        heard = self._board.has_heard
        return next((r for at, r in self._joins[index].items() if heard(index, at - 1) and not heard(index, at)), None)

    def part(self, index: int, ring: int) -> None:
        """Have a worker part from a ring."""
        self._unsent[index].append(ring)
        self.flush(index)

    def has_parted(self, index: int, ring: int) -> bool:
        """Whether a worker has parted from this ring, after the message to do so."""
        message = self._parted[index].get(ring)
        return message is not None and self._board.has_heard(index, message)

    def wait_parted(self, index: int, ring: int, seconds: float) -> None:
        """Wait until it has, or until `seconds` have passed, or something else has happened."""
        message = self._parted[index].get(ring)
        if message is not None:
            self._board.wait_heard(index, message, seconds)
        else:  # the message is not sent yet: when the worker has taken another one, there is room for it
            self._board.wait_heard(index, self._last[index], min(seconds, RETRY))

    def forget(self, ring: int) -> None:
        """Forget this ring, because nobody will ask for it."""
        for parted in self._parted:
            parted.pop(ring, None)

    def leave(self, index: int) -> None:
        """Have a worker leave, when it has heard all that was sent."""
        channel = self._channels[index]
        if channel is not None:
            with contextlib.suppress(OSError):  # it has died
                channel.socket.shutdown(socket.SHUT_WR)
            self._count(index)

    # ------------------------------------------------------------------------------------------------- sending

    def _count(self, index: int) -> int:
        self._last[index] = self._board.notify(index)
        return self._last[index]

    def flush(self, index: int) -> bool:
        """Send what did not fit before, in order.  Returns whether nothing is left to be sent.

        The caller holds `changing`, because two threads would send one message twice, and another one never.
        """
        channel, unsent = self._channels[index], self._unsent[index]
        if channel is None:  # another process is about to be this worker, and must not wait for what it is not sent
            unsent.clear()
        while unsent and channel is not None and not self._joining[index]:
            try:
                handed_over.send(channel.socket, handed_over.packets(PART, unsent[0])[0])
            except OSError as error:
                if error.errno in FULL:
                    return False  # any other: it has died
            self._parted[index][unsent.pop(0)] = self._count(index)
        return not unsent

    def _wait_for_room(self, index: int, runs: Callable[[], bool]) -> bool:
        """Wait until a worker has heard most of its messages.  Returns whether it lives."""
        while self._channels[index] is not None and runs():
            if self._board.has_heard(index, self._last[index] - UNHEARD & 0xFFFFFFFF) and self.flush(index):
                return True
            with let_through():
                self._board.wait_heard(index, self._last[index], RETRY)
        return False

    def _send_all(self, index: int, ring: int, packets: list[Packet], runs: Callable[[], bool]) -> None:
        message = 0
        try:
            for packet in packets:
                if not self._put(index, packet, runs):
                    return
                if not message:  # now, because it has to read for the rest to fit
                    heard = self._board.has_heard
                    joins = {at: other for at, other in self._joins[index].items() if not heard(index, at)}
                    self._joins[index] = joins | {self._last[index] + 1 & 0xFFFFFFFF: ring}
                    message = self._count(index)
        except BaseException:
            if message:
                self._give_up(index, message)
            raise

    def _put(self, index: int, packet: Packet, runs: Callable[[], bool]) -> bool:
        """Send a packet as soon as the kernel takes it.  Returns whether the worker lives."""
        while (channel := self._channels[index]) is not None and runs():
            idle = all(self._board.has_heard(each, last) for each, last in enumerate(self._last))
            try:
                handed_over.send(channel.socket, packet)
                return True
            except OSError as error:
                if error.errno not in FULL:  # it has died; the kernel reports that to the watching thread
                    return False
                if idle:  # no message of this crew waits in the kernel
                    raise _explained(error) from None
            with let_through():
                self._board.wait_heard(index, self._last[index], RETRY)
        return False

    def _give_up(self, index: int, message: int) -> None:
        """The rest of the last message does not come."""
        channel = self._channels[index]
        self._joins[index].pop(message, None)
        if channel is not None:
            try:
                handed_over.send(channel.socket, REST_IS_LOST)
            except OSError:
                with contextlib.suppress(OSError):
                    channel.socket.shutdown(socket.SHUT_WR)  # it ends, which is a death as any other


def _explained(error: OSError) -> OSError:
    if error.errno != errno.ETOOMANYREFS:
        return error
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return OSError(
        error.errno,
        f"{os.strerror(error.errno)}: the tensors of a dataset reach the workers of a crew as descriptors, and more "
        f"than {most} of them (ulimit -n) are under way between this user's processes. Raise the limit, or give the "
        "dataset fewer and larger tensors.",
    )
