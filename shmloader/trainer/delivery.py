"""Slot to batch: lent as tensors over the slot, or copied out beyond `spare_slots`.
It also waits for the batch; worker_set.py acts if a worker dies or `timeout` is over.

Which sequence comes next, in order or not, is decided by Sequences.find_ready() in sequences.pxi.

NOTE [ Lease ]

A delivered batch is a set of tensors over its payload.  When is the user done with it?  There may be views, numpy
views, tensors saved for backward, a list that keeps every target.  torch knows: a storage keeps alive the object that
exports its bytes, until the storage itself dies.  So each batch has one Lease (lease.pyx), and all its tensors and
arrays are built over that.  When the last of them dies, in whatever thread, the lease dies too, and its payload is
free.  `weakref.finalize` on the tensors would fire too soon: a `detach()` of a tensor may outlive it.  Small leaves
are the exception: they are copied into memory of their own (NOTE [ Small leaves ] in recipe.pxi).

    1. Each tensor has a storage of its own, which ends where the tensor ends.  With one storage for the whole slot,
       `torch.save` would write all of it and `deepcopy` would allocate all of it.  Only tensors that overlap have one
       together, which ends where they end (NOTE [ Views ] in layout.pxi).
    2. At most `spare_slots` payloads are lent.  Beyond that, a batch is copied when it is handed out, leaf by leaf.  If
       all leaves were copied into one piece of memory, a small target that the user keeps would keep the images' memory
       too.  Because batches beyond `spare_slots` are copies, `list(loader)` works, a first batch may be kept for ever,
       and the ring never waits for a tensor to die.
    3. When a lease dies, it only adds its payload's number to a list of its own process.  It may die in any thread, and
       while the interpreter shuts down.  So it takes no lock, waits for nothing and makes no Python call, except that a
       guarded lease calls one built-in function.
    4. A lease outlives its ring.  When the ring is closed, a payload that is lent stays mapped until its lease dies.
    5. If slots are page-locked, a copy to a device may outlive the lease, so the lease is guarded: NOTE [ Pinning ].
    6. A process that is forked while a batch is lent sees the slot, and not a copy of it.  If the trainer drops the
       batch and the slot is filled again, the forked process's batch changes.  So the user must clone the batch, or
       send it through a queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shmloader.core.batch_reader import BatchReader
from shmloader.core.figures import COPIED_KEPT, COPIED_SPARE, COPIED_UNLOCKED
from shmloader.core.lease import Lease
from shmloader.core.ring import KEPT, SKIPPED, SKIPPED_KEPT
from shmloader.core.trainer import NOTHING, TrainerSide
from shmloader.private.of_torch import ExceptionWrapper
from shmloader.ring.growth import warn_overflow
from shmloader.trainer.bad_samples import Tally
from shmloader.trainer.worker_set import WorkerSet

if TYPE_CHECKING:
    from shmloader.device.pinning import Pinning


class Delivery:
    """Takes the ring's sequences in order and makes batches of them, for Steps, which calls read() for each batch.

    Args:
        ring: The trainer's side.
        worker_set: The workers.  While it waits for a batch, it replaces those that die.
        spare: How many batches may be lent at once.
        timeout: How many seconds a batch may take; 0: any number.
        ends: Whether workers may run out of samples and have nothing for a sequence: iterable datasets.
        dismisses: Whether a worker ends as soon as its stream does, because no further epoch needs that worker.
        pinning: Page-locks the slots; then all batches are delivered in page-locked memory.
        reader: Reads batches; None: one that puts copies into plain memory.
        tally: Notes the samples that were bad; None: none are skipped.

    Attributes:
        closed: Whether the iterator was closed.
        interrupted: Whether it gives nothing more until its next epoch.
    """

    def __init__(
        self,
        ring: TrainerSide,
        worker_set: WorkerSet,
        spare: int,
        timeout: float,
        ends: bool,
        dismisses: bool,
        pinning: Pinning | None = None,
        reader: BatchReader | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._ring = ring
        self._worker_set = worker_set
        self._spare = spare
        self._timeout = timeout
        self._ends = ends
        self._dismisses = dismisses
        self._pinning = pinning
        self._reader = BatchReader(ExceptionWrapper) if reader is None else reader
        self._overflowed = False
        self._tally = tally
        self.closed = self.interrupted = False

    def wait(self) -> None:
        """Wait for the next sequence in order, or for any.  Look after workers that die or hang meanwhile.

        Raises:
            StopIteration: The iterator was closed or interrupted.
        """
        ring, worker_set = self._ring, self._worker_set
        while True:
            try:
                if ring.wait(self._timeout or -1):
                    return
            except RuntimeError as error:  # torch's SIGCHLD handler may run in there
                worker_set.raise_explained(error)
            if self.closed or self.interrupted:
                raise StopIteration
            if ring.alarmed:
                worker_set.look_after()
                if self.closed or self.interrupted:  # another thread's alarm: look_after() has cleared it
                    raise StopIteration
            else:
                worker_set.raise_or_kill(ring.sequences.awaited())

    def stream_ended(self, worker: int) -> None:
        """A worker has nothing more to give in this epoch.  It may be called more than once."""
        if self._dismisses:
            self._worker_set.dismiss(worker)

    def read(self) -> Any:
        """The batch that the ring has ready, lent or copied; NOTHING if its worker has nothing more to give.

        What fails here (unpickling, or memory that was overwritten) becomes an ExceptionWrapper, as in a worker.
        """
        ring, pinning = self._ring, self._pinning
        if pinning is not None:
            pinning.free()
        lease = ring.lend()
        outcome = lease.outcome
        if outcome in (SKIPPED, SKIPPED_KEPT) and self._ends:
            return NOTHING
        if lease.overflowed and not self._overflowed:
            self._overflowed = True
            warn_overflow()
        why = self._why_copy(outcome, lease)
        copy = why is not None
        if why is not None:
            ring.turns.copied(why)
            ring.slots.copied(lease.payload)
        try:
            batch = self._reader.read(lease, copy)
            if self._tally is not None and lease.reported:
                epoch = ring.current
                self._tally.note(lease.reports(), epoch.handed_out.samples + epoch.ready_samples, ring.taken)
            if pinning is not None:
                batch = pinning.finish(batch, lease)
        except Exception as error:
            if self.closed:  # a handler has closed it, and the memory is gone
                raise StopIteration from error
            batch = ExceptionWrapper(where="in the trainer, where a batch was read")
            lease.fail()
        return batch

    def _why_copy(self, outcome: int, lease: Lease) -> int | None:
        """Why a batch is copied out of its slot, as the statistics count it; None if it is lent."""
        if outcome == KEPT:
            return COPIED_KEPT
        if self._ring.slots.lent > self._spare:
            return COPIED_SPARE
        if self._pinning is not None and not self._pinning.guard(lease):
            return COPIED_UNLOCKED
        return None
