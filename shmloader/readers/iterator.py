"""The iterator of a process that reads another one's batches: lent, or copied beyond `spare_slots`.
It decides where the epoch ends for this reader, and raises if the conductor fails or leaves the epoch.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from shmloader._torch import ExceptionWrapper
from shmloader.batch.exceptions import raise_again
from shmloader.core.attached import AttachedSide
from shmloader.core.batch_reader import BatchReader
from shmloader.core.handlers import is_handlers
from shmloader.core.late_signals import in_del
from shmloader.core.ring import KEPT, SKIPPED, SKIPPED_KEPT
from shmloader.core.turns import Turns
from shmloader.readers.attachment import AttachedRing, Attachment
from shmloader.readers.epoch_message import epoch_from
from shmloader.resume.epoch import Epoch
from shmloader.system.signals import held_in_del


class _Hand(threading.local):
    """A batch that next() has not returned yet, its samples, and its number.  Each thread has its own."""

    def __init__(self) -> None:
        self.held: list[tuple[Any, int, int]] = []  # one at most


class ReaderIterator:
    """Gives the batches of an epoch that another process conducts.

    A signal's handler may raise in next(), at any call.  Then the next call gives the batch that this one would have
    given: it is in `_ready`, or in this thread's hand, and one call of C moves it from the one to the other.

    Args:
        loader: Whose iterator it is.
        attachment: The connection to the conductor.
        turns: What the user's turns are measured by.
        waits_for_next: Whether what is left of an epoch that has begun before this iterator is passed over.
        named: The number of the batch that it asked the conductor for; None: it takes what comes.
        begins: Whether it begins an epoch now.  Otherwise the caller calls _reset().

    Attributes:
        unreturned: The thread whose iter() has begun this epoch, and has not returned; 0: it has.  If a signal's
            handler has broken that off, the next iter() of the thread gives this epoch.
    """

    is_dying = False  # set by in_del()

    def __init__(
        self,
        loader: Any,
        attachment: Attachment,
        turns: Turns,
        waits_for_next: bool = False,
        named: int | None = None,
        begins: bool = True,
    ) -> None:
        self.loader = weakref.ref(loader)
        self._attachment = attachment
        self._turns = turns
        self._reader = BatchReader(ExceptionWrapper)
        self._owner = os.getpid()
        self._shutdown = self._left = False
        self._leave_sent = False  # to the conductor
        self._taking = threading.RLock()  # threads that share this iterator take one after the other
        self._occupant = 0  # the thread that takes
        self._ready: list[tuple[Any, int, int]] = []  # a batch that was taken and is in no thread's hand yet
        self._hand = _Hand()
        self._ring: AttachedRing
        self._began: dict[str, Any]  # the conductor's message about the epoch
        self.epoch: Epoch
        self._named = named
        self._given: int | None
        self._joins: bool  # it joined this epoch after its first batch, and has had none of it yet
        self.ended = False
        self.unreturned = 0
        if begins:
            self._reset(loader)
        if waits_for_next:
            self._pass_over()

    def _reset(self, loader: Any) -> None:
        """Begin the next epoch that the conductor begins."""
        self._check_owner()
        self._check_occupant("iter()")
        with self._taking:
            self._begin_next()

    def _await_next(self) -> dict[str, Any]:
        """Wait until the conductor begins another epoch, as _reset() does, and do not begin it; the message about it.

        Raises:
            RuntimeError: The conductor has raised where it should begin one, or is gone.
        """
        self._check_owner()
        self._check_occupant("iter()")
        with self._taking:
            self._leave_epoch()
            return self._attachment.next_epoch()[1]

    def _begin_next(self) -> None:
        self._leave_epoch()
        ring, message = self._attachment.next_epoch()
        epoch = epoch_from(message["of"])
        self._ready.clear()
        self._hand = _Hand()
        joins = ring.side.cursor > message["first"]
        given, me = self._named if joins else 0, threading.get_ident()
        ring.forget_before(message["serial"])
        # A signal's handler may raise in any call, so none is between these lines, and begun() comes last.
        self._ring, self._serial, self._first, self._began = ring, message["serial"], message["first"], message
        self.epoch, self._given, self._joins = epoch, given, joins
        self._shutdown = self._left  # if it was closed behind an epoch's end, the next one is its own again
        self.ended, self.unreturned = False, me
        self._attachment.begun()

    def _leave_epoch(self) -> None:
        """Until the conductor begins the next epoch, drop what comes of one that was left: it may wait for that."""
        if not hasattr(self, "_ring"):
            return
        side = self._ring.side
        side.took()  # a signal's handler may have raised while a batch was read, and that one is left too
        while not self.ended:
            side.clear_alarm()  # first: what comes after this raises it again
            if self._shutdown or self._ring.closed or self._attachment.has_next:
                return
            if not side.ready():
                _wait(side)
            elif side.cursor < self._first or self._is_of_this_epoch():
                side.skip()
            else:
                side.await_alarm()

    @property
    def next_batch(self) -> tuple[int, int | None]:
        """The epoch and the number in it, since it began in this ring, of the batch that next() would give.

        The number is None if it joined in mid-epoch without naming a batch, and has had none yet.
        """
        if self.ended:
            return self.epoch.number + 1, 0
        for batches in (self._hand.held, self._ready):  # a signal's handler has broken off the next() that took it
            if batches:
                return self.epoch.number, batches[0][2]
        return self.epoch.number, self._given

    @property
    def has_left(self) -> bool:
        """Whether it was closed in mid-epoch, so that its conductor gives it nothing more."""
        return self._left and not self._attachment.gone

    def _pass_over(self) -> None:
        """If this epoch has begun already, begin the next one.

        The conductor may have opened batches of that one early (prefetch_epochs) before this reader came.  Then it has
        begun as well, and this reader begins the one after it.
        """
        while self._ring.side.cursor > self._first and (loader := self.loader()) is not None:
            self._reset(loader)

    # ------------------------------------------------------------------------------------------------ one batch

    def __iter__(self) -> ReaderIterator:
        return self

    def __next__(self) -> Any:
        self._check_owner()
        self._check_occupant("next()")
        held = self._hand.held
        if not held:
            with self._taking:
                self._occupant = threading.get_ident()
                try:
                    held = self._took()
                finally:
                    self._occupant = 0
        batch, samples, number = held[0]
        self._turns.handed_out()
        delivered = self.epoch.reading.delivered
        if type(batch) is ExceptionWrapper:
            try:
                raise_again(batch)
            except Exception as error:
                if not is_handlers(error):
                    delivered.returned, self._given = samples, number + 1  # no call follows
                    del held[0]
                raise
        # Signals are handled at calls and loops.  There is none from here to the caller's own code.
        delivered.returned, self._given = samples, number + 1
        del held[0]
        return batch

    def _took(self) -> list[tuple[Any, int, int]]:
        """Take the next batch into this thread's hand."""
        self.unreturned = 0
        self._turns.asked()
        while not self._ready:
            if self._shutdown or self.ended or not self._wait():
                if self._joins and not self._shutdown:  # it joined after the last batch, before the end was sent
                    self._begin_next()
                    self.unreturned = 0  # iter() returned before; otherwise the next one would give this epoch again
                    continue
                if not self._shutdown:
                    self._come_to_end()
                self.ended = True
                self.epoch.reading.ended = not self._shutdown
                raise StopIteration
            self._take()
        self._ring.side.took()  # here, because a signal's handler may have raised in _take() before
        held = self._hand.held  # threads may have shared an iter() since next() began
        self._joins = False
        held.extend(map(self._ready.pop, (0,)))  # one call of C
        return held

    def _come_to_end(self) -> None:
        """The epoch is at its end, and StopIteration follows.  It may be called again."""

    def _check_occupant(self, called: str) -> None:
        if self._occupant == threading.get_ident():
            raise RuntimeError(
                f"{called} was called while this thread is in next() of the same iterator. The call came from a "
                "signal handler. Set a flag there, and call it in your loop."
            )

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(
                "This iterator belongs to the process that made it. This process was forked from that one. Iterate "
                "in the process that attached, or attach here."
            )

    def _wait(self) -> bool:
        """Wait for a batch of this epoch; false at its end.

        Raises:
            RuntimeError: The conductor has raised or is gone, or has dropped this reader.
        """
        ring, side = self._ring, self._ring.side
        if side.is_taken:  # a signal's handler has raised while it was read
            return True
        while True:
            side.clear_alarm()  # first: a message that comes after this raises it again
            # These come before all that follows.  The conductor publishes an epoch's batches, and sends its end, before
            # it closes the ring, begins the next epoch or is gone.  Otherwise that could come between, and look like
            # an epoch that it has left.
            is_left, gone, closed = self._attachment.has_next, self._attachment.gone, ring.closed
            end = ring.ends.get(self._serial)
            is_ready = side.ready()  # once: asked again, it could be true of a batch that is not looked at
            if is_ready and side.cursor < self._first:
                side.skip()
                continue
            if is_ready and self._is_of_this_epoch():
                return True
            if end is not None and side.cursor >= end:  # above it, if this reader has joined at a batch of the next one
                return False
            # What the conductor has sent of this epoch's end has not come yet.  Or it has dropped this reader since the
            # batch was ready, and opened the entry for a later epoch: then the message about that has not come yet.
            if is_ready and not gone and (end is not None or not is_left) and not self._shutdown:
                side.await_alarm()
                continue
            if (error := ring.error_here(self._serial)) is not None:
                raise RuntimeError(error)
            if self._shutdown:
                return False
            if gone:
                raise RuntimeError(gone)
            if closed or is_ready:
                raise RuntimeError(self._left_text("closed its iterator" if closed else "begun another epoch"))
            _wait(side)

    def _is_of_this_epoch(self) -> bool:
        """Whether the next batch is, which is ready."""
        return bool(self._ring.side.next_epoch == self._serial & 0xFFFFFFFF)

    def _left_text(self, did: str) -> str:
        pid, batch = self._attachment.pid, self.epoch.reading.delivered.batches
        if "server" in self._attachment.greeting:
            return (
                f"The server (pid {pid}) was stopped in mid-epoch, so batch {batch} was not made. Start it again, and "
                "attach without a state."
            )
        return (
            f"The first rank (pid {pid}) has {did} in mid-epoch, so batch {batch} was not made. Take the same number "
            "of batches in all ranks."
        )

    def _take(self) -> None:
        """Take the batch that is ready, and keep it until next() returns it."""
        side = self._ring.side
        lease = side.lend()
        if lease is None:
            return
        outcome = lease.outcome
        if outcome in (SKIPPED, SKIPPED_KEPT):  # a worker has nothing more of its stream
            side.took()
            return
        copy = outcome == KEPT or side.slots.lent > self._attachment.spare
        try:
            batch = self._reader.read(lease, copy)
        except Exception as error:
            if is_handlers(error):  # the next call reads it again
                raise
            batch = ExceptionWrapper(where="in a reader, where a batch was read")
            lease.fail()
        self._ready.append((batch, side.samples, side.batch))  # next() calls took()

    # ------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Take nothing more.  Batches that were delivered stay as they are.

        A signal's handler may break it off by an exception at any line.  Then the next call does the rest.
        """
        if self._owner != os.getpid() or not hasattr(self, "_ring"):  # it has begun no epoch
            return
        if not self._shutdown:
            left = not (self.ended or self._ring.closed)
            self._shutdown, self._left = True, self._left or left
        if self._left and not self._leave_sent:
            self._attachment.leave(self._ring)
            self._leave_sent = True
        self._ring.side.alarm()

    def stop_threads(self) -> None:
        """It has none of its own."""

    def __enter__(self) -> ReaderIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @in_del
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # global names may be None
            if os is not None and hasattr(self, "_owner"):
                self.close()
            return
        try:  # first, because a signal may come after any call
            with held_in_del(self):
                if hasattr(self, "_owner"):
                    self.close()
        finally:  # a signal may have come before signals were held back
            if hasattr(self, "_owner"):
                self.close()


def _wait(side: AttachedSide) -> None:
    """Wait until a batch is ready, or an alarm is raised."""
    if side.passed:
        side.await_alarm()
    else:
        side.wait()
