"""The iterator of a process that conducts: it says to the processes that read its batches what they cannot see.

A loader that others do not read has a RingIterator, which knows nothing of this.  So its batches cost what they did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from shmloader.core.next_batch import Steps
from shmloader.readers.host import Host
from shmloader.trainer.iterator import RingIterator

if TYPE_CHECKING:
    from shmloader.options import Options


class ConductingIterator(RingIterator):
    """Iterates over the batches of a loader that other processes read too: NOTE [ Readers ] in readers.pxd.

    Args:
        loader: Whose batches they are.
        options: Its options.
        host: Tells the others.
    """

    def __init__(self, loader: Any, options: Options, host: Host) -> None:
        self._audience: Host = host
        self._told_over = -1
        self._told_no_epoch = False  # that there is an error in place of an epoch
        try:
            super().__init__(loader, options)
        except Exception as error:  # such as no memory for the ring: the others wait for an epoch
            if not self._told_no_epoch:
                self._tell_failed(error, None)
            raise

    def _make_ring(self, *given: Any) -> None:
        super()._make_ring(*given)
        self._steps: Any = _HeardSteps(self._steps, self._tell_began, self._tell_over, self._tell_failed_here)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._told_no_epoch = False
        try:
            super()._reset(loader, first_iter)
        except Exception as error:
            self._tell_failed(error, None)
            raise

    def explain(self, error: RuntimeError) -> NoReturn:
        try:
            super().explain(error)
        except Exception as explained:
            self._tell_failed_here(explained)
            raise

    def _tell_began(self) -> None:
        self._audience.began(self._ring_number, self.epoch)

    def _tell_over(self) -> None:
        """Once the last batch of the epoch is open, say where it ends; where it has ended, at the latest."""
        epoch, ring = self.epoch, self._ring
        if self._told_over == epoch.serial:
            return
        if epoch.reading.ended or (epoch.source is not None and epoch.source.is_exhausted):
            self._told_over = epoch.serial
            at = ring.sequences.next_open if ring.next is None else ring.next.first
            self._audience.over(self._ring_number, epoch, at)

    def _tell_failed_here(self, error: BaseException) -> None:
        """An error comes in place of a batch of this epoch."""
        self._tell_failed(error, self.epoch)

    def _tell_failed(self, error: BaseException, epoch: Any) -> None:
        """Say that an error comes in an epoch, or in place of one (None)."""
        if isinstance(error, StopIteration):
            return
        self._told_no_epoch = epoch is None
        at = self._ring.sequences.next_take if hasattr(self, "_ring") else 0
        self._audience.failed(self._ring_number, error, epoch, at)


class _HeardSteps:
    """The step from one batch to the next (core/next_batch.pyx), of which others hear.

    Args:
        steps: Does it.
        began: Called where an epoch begins, before its first batch is opened.
        over: Called where its last one may be open.
        failed: Called with an error, save one that RingIterator.explain() is given, which says it.
    """

    def __init__(
        self,
        steps: Steps,
        began: Callable[[], None],
        over: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._steps, self._began, self._over, self._failed = steps, began, over, failed
        self.drain = steps.drain

    def begin(self) -> None:
        self._began()
        self._steps.begin()
        self._over()

    def next(self) -> Any:
        try:
            batch = self._steps.next()
        except RuntimeError:
            raise
        except Exception as error:
            self._failed(error)
            raise
        self._over()
        return batch
