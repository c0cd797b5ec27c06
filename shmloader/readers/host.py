"""The conductor's end: admits or refuses readers, gives them the ring's memory, sends them epochs and errors.
It finds the batch at which a reader continues, drops readers that are too slow (`--patience`), and buries the dead.

_welcome() decides whether a reader may join; attachment.py lists all checks.

A thread handles what readers do: they connect, close, and die (pidfds).  The thread that iterates sends messages.
Neither waits for a reader: a reader that does not receive its messages is dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from typing import Any

from shmloader.core.late_signals import in_del
from shmloader.core.readers import MOST_READERS
from shmloader.core.trainer import TrainerSide
from shmloader.readers.epoch_message import message_of
from shmloader.readers.listener import Listener
from shmloader.readers.records import ReaderRecord, RingRecord, close_all
from shmloader.readers.wire import Wire, bell, death_of
from shmloader.resume.epoch import Epoch
from shmloader.ring.segment import Segment
from shmloader.system.signals import held, held_in_del
from shmloader.trainer.audience import Drawn


class Host:
    """Where the batches of one loader are read from, by other processes.

    Args:
        listener: Where they connect.
        spares: How many batches all of them together may lend.
        pids: Of a group: the processes that read, in the order of their indices; None: whoever comes.
        reads: Whether this process reads too.
        patience: Where a reader holds up another for so many seconds, it is dropped; None: all wait for it.
        greeting: More fields of the first message to each reader.
    """

    def __init__(
        self,
        listener: socket.socket,
        spares: int,
        pids: list[int] | None = None,
        reads: bool = True,
        patience: float | None = None,
        greeting: dict[str, Any] | None = None,
    ) -> None:
        self.reads = reads
        self.spares = spares
        self._listener = Listener(listener)
        self._patience = patience
        self.is_group = pids is not None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._rings: dict[int, RingRecord] = {}
        self._made = 0
        self._closed = False
        self._greeting = {"welcome": True, **(greeting or {})}
        self._coming: list[Wire] = []  # have connected, and have not sent their first message
        self._joined: list[ReaderRecord] = []
        for index, pid in enumerate(pids or []):
            self._joined.append(ReaderRecord(index, pid, death_of(pid)))
        self._bye = bell()
        mine = weakref.ref(self)  # who iterates keeps it, and not its thread
        self._thread = threading.Thread(target=_watch, args=(mine, self._bye), name="shmloader_readers", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------ from the thread that iterates

    def ring_made(self, ring: TrainerSide, segment: Segment) -> int:
        with self._lock:
            self._made += 1
            assert ring.readers is not None
            made = self._rings[self._made] = RingRecord(self._made, ring.readers, segment)
            for reader in self._joined:
                if not reader.left and (reader.index is not None or reader.wire is not None):  # it came before the ring
                    self._admit(reader, made)
        return made.number

    def began(self, number: int, epoch: Epoch, drawn: Drawn) -> None:
        message = {"epoch": number, "serial": epoch.serial, "first": epoch.first, "of": message_of(epoch)}
        self._send_all(number, message | {"drawn": drawn})

    def over(self, number: int, epoch: Epoch, at: int, drawn: Drawn, final: bool) -> None:
        message = {"over": number, "serial": epoch.serial, "at": at, "batches": epoch.opened}
        self._send_all(number, message | {"drawn": drawn, "final": final})

    def failed(self, number: int, error: BaseException, epoch: Epoch | None, at: int) -> None:
        what = f"{type(error).__name__}: {error}"
        serial = None if epoch is None else epoch.serial
        self._send_all(number, {"failed": number, "serial": serial, "at": at, "what": what, "pid": os.getpid()})

    def closed(self, number: int, at: int) -> None:
        self._send_all(number, {"closed": number, "at": at})
        with self._lock:
            ring = self._rings.pop(number, None)
            if ring is not None:
                os.close(ring.fd)

    def _send_all(self, number: int, message: dict[str, Any]) -> None:
        if self._owner != os.getpid():
            return
        with self._lock:
            if number in self._rings:
                self._rings[number].note(message)
            for reader in list(self._joined):
                if reader.index is not None:
                    self._send(reader, message)

    # ------------------------------------------------------------------------------------------------ one reader

    def _send(self, reader: ReaderRecord, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        if reader.left:
            return
        if reader.wire is None:
            if self.is_group:  # it will come
                reader.unsent.append((message, tuple(map(os.dup, fds))))  # its ring may be closed until then
            return
        try:
            reader.wire.send(message, fds)
        except BlockingIOError:
            self._drop(reader, "it did not receive its messages")
        except ConnectionError:
            pass  # it is gone, and the thread sees it
        except OSError as error:  # without this message it would wait for ever
            self._drop(reader, f"a message could not be sent to it: {error}")

    def _admit(self, reader: ReaderRecord, ring: RingRecord) -> None:
        """Give a reader its place in a ring that is made while it reads, and send it what it needs to know of it."""
        given = ring.readers.admit(None, reader.index)
        assert given is not None, "there are more readers than indices"
        reader.index, cursor = given
        self._send_ring(reader, ring, cursor)

    def _send_ring(self, reader: ReaderRecord, ring: RingRecord, cursor: int) -> None:
        """Send a reader all that it needs to know of a ring in which it has its place."""
        self._send(
            reader,
            {"ring": ring.number, "geometry": ring.geometry, "index": reader.index, "cursor": cursor},
            (ring.fd,),
        )
        for message in ring.messages_from(cursor):
            self._send(reader, message)

    def _drop(self, reader: ReaderRecord, why: str) -> None:
        """Let a reader take nothing more, and send it why; it may still lend.  It closes the connection then."""
        self._exclude(reader)
        if reader.wire is not None:
            try:
                reader.wire.send({"dropped": why})
            except OSError:
                reader.wire.close()
                reader.wire = None

    def _exclude(self, reader: ReaderRecord) -> None:
        """Let a reader take nothing more."""
        reader.left = True
        for ring in self._rings.values():
            if reader.index is not None:
                ring.readers.drop(reader.index)

    def _handle_close(self, reader: ReaderRecord) -> None:
        """A reader has closed its end.  Its process may live and still lend."""
        assert reader.wire is not None
        self._exclude(reader)
        reader.has_closed = True
        reader.wire.close()
        reader.wire = None

    def _bury_closed(self) -> None:
        """Free the indices of readers that have closed and lend nothing: NOTE [ Readers ] in readers.pxd, 4."""
        for reader in [reader for reader in self._joined if reader.has_closed]:
            index = reader.index
            if index is None or not any(ring.readers.holds(index) for ring in self._rings.values()):
                self._bury(reader)

    def _bury(self, reader: ReaderRecord) -> None:
        self._joined.remove(reader)
        if reader.index is not None:
            for ring in self._rings.values():
                ring.readers.bury(reader.index)
        reader.drop_unsent()
        if reader.wire is not None:
            reader.wire.close()
        os.close(reader.death)

    # ------------------------------------------------------------------------------------------------ the thread

    def watched(self) -> tuple[dict[int, ReaderRecord | Wire | None], int | None]:
        """The descriptors to wait for, each with its owner (None: the listener), and the most milliseconds to wait."""
        with self._lock:
            if self._closed:
                return {}, 0
            found: dict[int, ReaderRecord | Wire | None] = {self._listener.fileno(): None}
            found.update((wire.sock.fileno(), wire) for wire in self._coming)
            for reader in self._joined:
                found[reader.death] = reader
                if reader.wire is not None:
                    found[reader.wire.sock.fileno()] = reader
            return found, 1000 if self._patience is not None and len(self._joined) > 1 else None

    def handle(self, found: list[tuple[int, ReaderRecord | Wire | None]]) -> None:
        """Handle descriptors that are readable, and readers that are slow."""
        with self._lock:
            for fd, reader in found:
                if not self._closed:
                    try:
                        self._handle_one(fd, reader)
                    except Exception as error:  # one reader must not end the thread, which serves all
                        if isinstance(reader, ReaderRecord) and reader in self._joined:
                            self._drop(reader, f"what it sent cannot be handled: {error!r}")
            if self._patience is not None and not self._closed:
                self._drop_the_slow()

    def _handle_one(self, fd: int, reader: ReaderRecord | Wire | None) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif isinstance(reader, Wire):
            self._coming.remove(reader)
            self._handle_hello(reader)
        elif reader is None or reader not in self._joined:
            return
        elif fd == reader.death:
            self._bury(reader)
        elif reader.wire is not None:
            try:
                message, fds = reader.wire.receive()
            except BlockingIOError:
                return
            close_all(fds)
            if message is None:
                self._handle_close(reader)
            elif "leave" in message and (ring := self._rings.get(message["leave"])) is not None:
                assert reader.index is not None
                ring.readers.drop(reader.index)

    def _accept(self) -> None:
        wire = self._listener.accept()
        if wire is not None:
            self._coming.append(wire)

    def _handle_hello(self, wire: Wire) -> None:
        try:
            hello, fds = wire.receive()
            close_all(fds)
            if hello is not None:
                self._welcome(wire, hello)
                return
        except Exception as error:  # whatever it has sent, the others are served on
            why = str(error) if isinstance(error, RuntimeError) else f"It cannot be admitted: {error!r}"
            with contextlib.suppress(OSError):
                wire.send({"refused": why})
            for reader in self._joined:
                if reader.wire is wire:
                    self._handle_close(reader)
        wire.close()

    def _welcome(self, wire: Wire, hello: dict[str, Any]) -> None:
        """Admit a reader that has connected.

        Raises:
            RuntimeError: It cannot be admitted, with the reason, which is sent to it.
        """
        if self.is_group:
            known = [reader for reader in self._joined if reader.pid == wire.pid]
            if not known:
                raise RuntimeError(
                    f"Process {wire.pid} is not in the group that reads this loader. Only the ranks of the group that "
                    "readers= names can read it."
                )
            (reader,) = known
            if reader.left:  # what came since is lost to it, so it would wait for ever
                raise RuntimeError(
                    f"Process {wire.pid} has closed its connection to the first rank of its group. Close the loader in "
                    "all ranks, and iterate again."
                )
            if reader.wire is not None:
                reader.wire.close()
            reader.wire, unsent, reader.unsent = wire, reader.unsent, []
            wire.send(self._greeting)
            for message, fds in unsent:
                self._send(reader, message, fds)
                close_all(fds)
            return
        self._check_server(hello)
        self._bury_closed()
        if len(self._joined) >= MOST_READERS:
            raise RuntimeError(
                f"{len(self._joined)} readers are attached to this loader, or still keep batches of it. "
                f"At most {MOST_READERS} can. Close one, and drop its batches."
            )
        reader = ReaderRecord(None, wire.pid, os.dup(wire.death))  # first: if it fails, nobody frees the index
        try:
            reader.index, cursors = self._places(hello)
        except BaseException:
            os.close(reader.death)
            raise
        reader.wire = wire
        self._joined.append(reader)
        wire.send(self._greeting)
        for number, cursor in cursors.items():
            self._send_ring(reader, self._rings[number], cursor)

    def _places(self, hello: dict[str, Any]) -> tuple[int | None, dict[int, int]]:
        """Give a reader its place in each ring: its index, and the sequences with which it begins.

        Meanwhile the thread that iterates may open entries again.  So only admit() knows whether a place still is one.
        """
        index: int | None = None
        cursors: dict[int, int] = {}
        for number, ring in self._rings.items():
            at = self._find(ring, hello)
            try:
                given = ring.readers.admit(at, index)
                assert given is not None, "there are more readers than indices"
            except LookupError:
                if index is not None:
                    for other in cursors:
                        self._rings[other].readers.bury(index)
                raise RuntimeError(self._gone_text(ring, hello)) from None
            index, cursors[number] = given
        return index, cursors

    def _check_server(self, hello: dict[str, Any]) -> None:
        if hello.get("batch") is not None and hello["server"] != self._greeting.get("server"):
            raise RuntimeError(
                f"Batch {hello['batch']} of epoch {hello['epoch']} comes from another server process. This server was "
                "started later, and has other batches. Attach without a state to begin at its next batch."
            )

    def _find(self, ring: RingRecord, hello: dict[str, Any]) -> int | None:
        """The sequence at which a reader continues if it names a batch; None if it names none."""
        if hello.get("batch") is None:
            return None
        epoch, batch = hello["epoch"], hello["batch"]
        for number, serial, first in ring.epochs:
            if number == epoch:
                found = first if batch == 0 else ring.readers.find(serial, batch)
                if found is not None:
                    return int(found)
        if (end := ring.end_of(epoch)) is not None and end[1] == batch:
            return end[0]
        if batch == 0 and (end := ring.end_of(epoch - 1)) is not None:
            return end[0]
        raise RuntimeError(self._gone_text(ring, hello))

    def _gone_text(self, ring: RingRecord, hello: dict[str, Any]) -> str:
        epoch, batch = ring.next_joined()
        return (
            f"Batch {hello['batch']} of epoch {hello['epoch']} is not in the ring any more. Attach without a state to "
            f"go on with the next one, which is batch {batch} of epoch {epoch} now."
        )

    def _drop_the_slow(self) -> None:
        assert self._patience is not None
        for ring in self._rings.values():
            holding, at = ring.readers.holding_up(), ring.readers.all_took
            if not holding or not ring.readers.starved():
                ring.held_up = 0, 0, 0.0
            elif ring.held_up[:2] != (holding, at):
                ring.held_up = holding, at, time.monotonic()
            elif time.monotonic() - ring.held_up[2] >= self._patience:
                for reader in list(self._joined):
                    if reader.index is not None and holding >> reader.index & 1:
                        self._drop(
                            reader,
                            f"it held up the others for {self._patience:g} seconds. They had taken all batches, and it "
                            "had not taken the oldest one. Attach again, or serve with more --patience or --slow wait.",
                        )

    def wait_until_received(self) -> None:
        """Wait until each rank of a group has received nearly all that was sent to it, or is gone.

        A rank may be stopped for a while, or hold its GIL for long.  Otherwise epochs of a few batches would fill its
        socket with messages, and it would be dropped.  A socket is writable while at most a quarter of its memory is
        used, so the messages of one more epoch find room.
        """
        while self.is_group and (full := self._full_socket()) is not None:
            with full:
                poll = select.poll()
                poll.register(full, select.POLLOUT)
                poll.poll()

    def _full_socket(self) -> socket.socket | None:
        """The socket of a rank that has not received enough yet: a copy, because the thread may close it meanwhile."""
        with self._lock:
            for reader in self._joined:
                if reader.wire is not None and not reader.left and not reader.wire.is_writable():
                    return reader.wire.sock.dup()
        return None

    def wait_for_the_last(self) -> None:
        """Wait until no reader is due for anything more."""
        for ring in list(self._rings.values()):
            ring.readers.wait_until_taken()  # without the lock, because the thread drops readers meanwhile

    # ------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the thread and all connections.  Readers keep what they lend.  Twice does no harm."""
        if self._owner != os.getpid():
            return
        with held():  # otherwise a signal's handler could raise between two of these steps
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                for reader in self._joined:
                    for ring in self._rings.values():  # an iterator may continue, and must not wait for the readers
                        if reader.index is not None:
                            ring.readers.drop(reader.index)
                    if reader.wire is not None:
                        with contextlib.suppress(OSError):
                            reader.wire.send({"ended": os.getpid()})
                        reader.wire.close()
                    reader.drop_unsent()
                    os.close(reader.death)
                for wire in self._coming:
                    wire.close()
                self._coming.clear()
                self._joined.clear()
                for ring in self._rings.values():
                    os.close(ring.fd)
                self._rings.clear()
            os.eventfd_write(self._bye, 1)
            if threading.current_thread() is not self._thread:
                self._thread.join()
            self._listener.close()
            os.close(self._bye)

    @in_del
    def __del__(self) -> None:
        if os is not None and held_in_del is not None and hasattr(self, "_thread"):
            with held_in_del(self):
                self.close()


def _watch(mine: weakref.ref[Host], bye: int) -> None:
    """The thread: it sleeps until a process connects, sends a message, closes or dies."""
    while True:
        host = mine()
        if host is None:
            return
        watched, timeout = host.watched()
        del host
        if not watched:
            return
        poll = select.poll()
        for fd in (bye, *watched):
            poll.register(fd, select.POLLIN)
        found = [fd for fd, _ in poll.poll(timeout)]
        host = mine()
        if host is None or bye in found:
            return
        host.handle([(fd, watched[fd]) for fd in found])
        del host
