"""The iterator of the conductor: it sends the readers where an epoch begins and ends, what it has drawn, and errors.
If a signal's handler breaks off iter() before that, it undoes the draws.

If no other process reads a loader's batches, the loader has a RingIterator, which does none of this and so costs less.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from shmloader.core.handlers import is_handlers
from shmloader.core.next_batch import END, Steps
from shmloader.readers.epoch_message import message_of
from shmloader.readers.host import Host
from shmloader.resume.epoch import Epoch
from shmloader.resume.loader_generators import own_generators, set_states, states_of
from shmloader.system.signals import held
from shmloader.trainer.audience import Drawn
from shmloader.trainer.iterator import RingIterator

if TYPE_CHECKING:
    from shmloader.options import Options


class ConductingIterator(RingIterator):
    """Iterates over the batches of a loader that other processes read too: NOTE [ Readers ] in readers.pxd.

    Args:
        loader: Whose batches they are.
        options: Its options.
        host: Sends to the other processes.
    """

    def __init__(self, loader: Any, options: Options, host: Host) -> None:
        self._audience: Host = host
        self._length: int | None = None  # the batches of an epoch, where the loader has a length
        self._over_sent = -1, False  # the serial of the latest epoch whose end was sent, and whether for the last time
        self._began_sent = False  # the beginning of the epoch was sent
        self._failure_sent = False  # an error was sent in place of an epoch, or of its first batch
        self._generators: list[torch.Generator] = []  # whose states are sent
        host.wait_until_received()
        try:
            with self._undrawn_if_broken_off(loader):
                super().__init__(loader, options)
        except Exception as error:  # such as no memory for the ring: the others wait for an epoch
            if not self._failure_sent and not _is_this_ranks(error):
                self._send_failed(error, None)
            raise

    def _make_ring(self, *given: Any) -> None:
        super()._make_ring(*given)
        self._stepping = _AnnouncedSteps(self._steps, self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._audience.wait_until_received()  # first: nothing is drawn yet if a handler raises there
        self._began_sent = self._failure_sent = False
        self._send_left()
        self._generators = own_generators(loader) if self._audience.is_group else []
        try:
            self._length = None if self._streams else len(loader)
        except TypeError:
            self._length = None
        try:
            with self._undrawn_if_broken_off(loader):
                super()._reset(loader, first_iter)
        except Exception as error:
            if not _is_this_ranks(error):
                self._send_failed(error, self.epoch if self._began_sent else None)
                self._failure_sent = True
            raise

    @contextlib.contextmanager
    def _undrawn_if_broken_off(self, loader: Any) -> Iterator[None]:
        """If a signal's handler breaks off iter() before the other ranks know of the epoch, undo its draws.

        The next iter() draws again, and the other ranks draw only once.
        """
        generators = own_generators(loader) if self._audience.is_group else []
        states, of_global = states_of(generators), torch.get_rng_state()
        try:
            yield
        except BaseException as error:
            if self._audience.is_group and not self._began_sent and _is_this_ranks(error):
                with held():
                    set_states(generators, states)
                    torch.set_rng_state(of_global)
            raise

    def explain(self, error: RuntimeError) -> NoReturn:
        try:
            super().explain(error)
        except Exception as explained:
            if not _is_this_ranks(explained):
                self._send_failed_here(explained)
            raise

    # A signal's handler that raises in one of the following could break off a message, or keep it from being sent at
    # all.  A reader would wait for it, or be dropped, because a TimeoutError is an OSError.

    def _send_began(self) -> None:
        with held():
            self._began_sent = True
            self._audience.began(self._ring_number, self.epoch, self._drawn())

    def _drawn(self) -> Drawn:
        coming, drawn_early = self._conductor.next, self._conductor.drawn_early
        if not self._audience.is_group:
            return Drawn([])
        later = None if coming is None else message_of(coming)
        return Drawn(states_of(self._generators), drawn_early, self.epoch.drawn_early, later)

    def _send_left(self) -> None:
        """The user leaves the epoch, so nothing more is drawn in it.

        If that is after as many batches as the loader has, send that the epoch ends there.  The sampler was not asked
        for one batch more, so nothing else has sent the end.  Ranks that iterate until the end need it.
        """
        if isinstance(self.epoch, Epoch):  # otherwise this is the first
            is_over = self._length is not None and self.epoch.start.batches + self.epoch.opened >= self._length
            self._send_over(is_over, True)

    def _shutdown_workers(self, *given: Any) -> None:
        if os is not None and not self._shutdown and self._owner == os.getpid():
            self._send_left()
        super()._shutdown_workers(*given)

    def _send_over(self, is_over: bool = False, is_left: bool = False) -> None:
        """Send where the epoch ends, as soon as its last batch is open, or at the latest where it has ended.

        If the next epoch is drawn early, more of it is drawn with each batch that this process takes.  So the end is
        sent again behind the last one: a group's generators are then where they are at the end of the epoch.
        """
        epoch, ring, reading = self.epoch, self._ring, self.epoch.reading
        if self._over_sent == (epoch.serial, True):
            return
        all_open = epoch.source is not None and epoch.source.is_exhausted and not epoch.waits
        if not (is_over or reading.ended or all_open):
            return
        draws_more = self._audience.is_group and epoch.asks_next and reading.taken != epoch.opened
        is_final = is_left or reading.ended or not draws_more
        if self._over_sent != (epoch.serial, is_final):
            with held():
                self._over_sent = epoch.serial, is_final
                at = ring.sequences.next_open if ring.next is None else ring.next.first
                self._audience.over(self._ring_number, epoch, at, self._drawn(), is_final)

    def _send_failed_here(self, error: BaseException) -> None:
        """Send that an error comes in place of a batch of this epoch."""
        self._send_failed(error, self.epoch)

    def _send_failed(self, error: BaseException, epoch: Any) -> None:
        """Send that an error comes in an epoch, or in place of one (None)."""
        if isinstance(error, StopIteration):
            return
        with held():
            self._failure_sent |= epoch is None
            at = self._ring.sequences.next_take if hasattr(self, "_ring") else 0
            self._audience.failed(self._ring_number, error, epoch, at)


def _is_this_ranks(error: BaseException) -> bool:
    """Whether an exception is no other rank's, because a signal's handler has raised it.

    torch's handler tells of a worker that died, and then there are no more batches for any rank.
    """
    if not isinstance(error, Exception):
        return True
    return is_handlers(error) and not str(error).startswith("DataLoader worker (pid")


class _AnnouncedSteps:
    """The step from one batch to the next (core/next_batch.pyx), and a call for what readers must know of it.

    It does not keep its iterator.  Otherwise the two would keep each other, and the workers of a loader that is dropped
    would live until the garbage collector runs.

    Args:
        steps: Does the step.
        iterator: Sends where an epoch begins, where it ends, and an error that comes in place of a batch.  A
            RuntimeError goes to RingIterator.explain() instead, and is sent there.
    """

    def __init__(self, steps: Steps, iterator: ConductingIterator) -> None:
        self._steps, self._iterator = steps, weakref.proxy(iterator)
        self.drain = steps.drain

    def begin(self) -> None:
        if self._iterator._audience.is_group:  # the states are sent in which the generators are when iter() returns
            self._steps.draw_first()
        self._iterator._send_began()  # before its first batch is opened
        self._steps.begin()
        self._iterator._send_over()

    def next(self) -> Any:
        try:
            batch = self._steps.next()
        except RuntimeError:
            raise
        except Exception as error:
            if not _is_this_ranks(error):
                self._iterator._send_failed_here(error)
            raise
        self._iterator._send_over(batch is END and not self._iterator._delivery.closed)
        return batch
