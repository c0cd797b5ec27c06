"""Messages to a process that already runs: a pickle in nameless memory, and the descriptors that the pickle names.

A spawned process gets its arguments while it starts.  A process that already runs gets a message through a socket: a
packet with a few numbers, and descriptors.  The first descriptor is a file in memory that holds the pickle.  So a
message may have locks, queues, connections, shared tensors and our own memory in it, as arguments of a process may.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any, NamedTuple

import torch

from shmloader.system import nameless
from shmloader.system.signals import let_through
from shmloader.system.spawn_arguments import Pages, Pickler

AT_ONCE = 200  # descriptors in a packet; the kernel takes 253
_HEADER = struct.Struct("=iqqi")  # kind, the two numbers of packets(), count of descriptors

Packet = tuple[bytes, list[int]]  # a header, and descriptors

_given: list[int] = []  # the descriptors of the message that is being unpickled


class Given:
    """Stands for a descriptor in a pickle, by its place among those that came with it."""

    def __init__(self, place: int) -> None:
        self._place = place

    def detach(self) -> int:
        """The descriptor, which the caller must close."""
        return os.dup(_given[self._place])


class _Handing:
    """Collects descriptors: multiprocessing calls it while something is pickled for another process."""

    DupFd = Given

    def __init__(self) -> None:
        self.descriptors: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Send a copy of a descriptor along; returns its place."""
        self.descriptors.append(os.dup(fd))
        return len(self.descriptors) - 1


class _NotingPickler(Pickler):
    """Notes what it pickles by its name, of what is asked for."""

    def __init__(self, pages: Pages, notes: Callable[[Any], bool], named: list[Any]) -> None:
        super().__init__(pages)
        self._notes, self._named = notes, named

    def reducer_override(self, value: Any) -> Any:
        if self._notes(value):
            self._named.append(value)
        return super().reducer_override(value)


class HandedOver:
    """Values that are pickled, one by one, into one file, which can be sent to any number of processes.

    Args:
        values: The values.
        notes: Whether something that is pickled is noted in `named`.

    Attributes:
        named: What was noted.
        for_all: Whether it may be sent to several processes.  If not, each needs a pickle of its own.

    Raises:
        MemoryError: The machine does not have the memory.
        OSError: No descriptor is left.
        Exception: What pickling raises.
    """

    def __init__(self, *values: Any, notes: Callable[[Any], bool] = lambda _: False) -> None:
        handing = _Handing()
        self.named: list[Any] = []
        self.descriptors = [nameless.memory("shmloader_handed_over")]
        before = context.get_spawning_popen()
        try:
            pages = Pages(self.descriptors[0])
            context.set_spawning_popen(handing)  # type: ignore[arg-type]
            try:
                with let_through():  # it may take long
                    for value in values:
                        _NotingPickler(pages, notes, self.named).dump(value)
            finally:
                context.set_spawning_popen(before)
                self.descriptors += handing.descriptors
        except BaseException:
            self.close()
            raise
        self.size = pages.size
        # torch counts each pickle of a tensor on a GPU, or of one that is shared by name, as one reader.
        shared = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
        self.for_all = shared and not pages.counts_its_reader

    def close(self) -> None:
        """Close the file and the descriptors in this process.  Closing twice is harmless."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class Message(NamedTuple):
    """A message that this process has received, and must close."""

    kind: int
    number: int
    first: int
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors that came with it."""
        while self.descriptors:
            os.close(self.descriptors.pop())


def packets(kind: int, number: int, first: int = 0, handed: HandedOver | None = None) -> list[Packet]:
    """The packets of a message: one, or several if it has many descriptors."""
    descriptors = [] if handed is None else handed.descriptors
    header = _HEADER.pack(kind, number, first, len(descriptors))
    return [(header, descriptors[at : at + AT_ONCE]) for at in range(0, len(descriptors) or 1, AT_ONCE)]


def send(channel: socket.socket, packet: Packet) -> None:
    """Send a packet, without waiting.

    Raises:
        BlockingIOError: The socket is full.
        ConnectionError: The other process is gone.
        OSError: The kernel has no memory, or too many descriptors are under way (ETOOMANYREFS).
    """
    header, descriptors = packet
    socket.send_fds(channel, [header], descriptors, socket.MSG_DONTWAIT)


REST_IS_LOST: Packet = _HEADER.pack(0, 0, 0, -1), []  # sent in place of the last packets of a message


def receive(channel: socket.socket) -> Message | None:
    """The next message; None if the other end is closed.  A message that has lost packets has the kind 0.

    Raises:
        OSError: This process may open no more files.
    """
    descriptors: list[int] = []
    while True:
        packet, received, flags, _ = socket.recv_fds(channel, _HEADER.size, AT_ONCE, socket.MSG_CMSG_CLOEXEC)
        descriptors += received
        if not packet or flags & socket.MSG_CTRUNC:
            for fd in descriptors:
                os.close(fd)
            if packet:
                raise OSError(
                    "a worker could not receive a descriptor from the trainer, because it may open no more files "
                    "(ulimit -n). Raise the limit, or have the dataset keep fewer files open."
                )
            return None
        kind, number, first, count = _HEADER.unpack(packet)
        message = Message(kind, number, first, descriptors)
        if count < 0:
            message.close()
        if len(descriptors) == max(0, count):
            return message


class Unpacking:
    """Unpickles the values of a message, one after the other.  Use it in a `with`."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def __enter__(self) -> Unpacking:
        self._collecting = gc.isenabled()
        gc.disable()  # otherwise the collector walks again and again through a list of a million tuples while it grows
        self._pages = mmap.mmap(self._message.descriptors[0], 0, access=mmap.ACCESS_READ)
        _given[:] = self._message.descriptors[1:]
        return self

    def __exit__(self, *_: object) -> None:
        _given.clear()
        self._pages.close()
        self._message.close()
        if self._collecting:
            gc.enable()

    def next(self) -> Any:
        """The next value."""
        return pickle.load(self._pages)


class Channel:
    """One end of a pair of sockets.  A forked process inherits it, and a spawned one gets it among its arguments."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def close(self) -> None:
        """Close this end.  Closing twice is harmless."""
        self.socket.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": reduction.DupFd(self.socket.fileno())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.socket = socket.socket(fileno=state["fd"].detach())


def pair() -> tuple[Channel, Channel]:
    """Both ends of a new pair of sockets."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(other)
