"""Slot to batch: lent as tensors over the slot, or copied out.

NOTE [ Lease ]

A delivered batch is a set of tensors over its payload, and nobody can say when the user is done with it: views,
numpy views, tensors saved for backward, a list that keeps every target.  torch can.  Each storage keeps the object
that exports its bytes alive until the storage itself dies, so one Lease (ring.pyx) is made for each batch and every
tensor and array of the batch is built over it.  When the last one dies, in whatever thread, so does the lease, and
its payload is free.  `weakref.finalize` on the tensors would not do: it fires while a `detach()` of one lives.

    1. Each tensor has a storage of its own that ends where the tensor ends.  One storage for the slot would have
       `torch.save` write, and `deepcopy` allocate, all of it.
    2. At most `spare_slots` payloads are lent.  Past that, a batch is copied out as it is handed out, leaf by leaf
       (kept together, one small target would keep the memory of all the images).  So `list(loader)` works, a first
       batch may be kept for ever, and the ring never waits for a tensor to die.
    3. A lease only hands a payload's number to a list of its own process.  It makes no Python call (a guarded one,
       one that is built in), takes no lock and waits for nothing, for it may die in any thread and while the
       interpreter goes down.
    4. A lease outlives its ring.  When the ring is closed, what is lent stays mapped, payload by payload, until its
       lease dies.
    5. Where slots are page-locked, a copy to a device may outlive the lease: it is guarded, NOTE [ Pinning ].
    6. A process forked while a batch is lent sees the slot, not a copy of it: the batch changes under it once the
       trainer has dropped its own.  Send it through a queue, or clone it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shmloader._layout import Reader
from shmloader._ring import KEPT, NOTHING, SKIPPED, TrainerSide
from shmloader._torch import ExceptionWrapper
from shmloader.pinning import Pinning
from shmloader.segment import warn_overflow


class Delivery:
    """Takes the ring's sequences in order and makes batches of them.

    Args:
        ring: the trainer's side.
        spare: batches that may be lent at once.
        ends: whether workers may come to an end of their own, and have nothing for a sequence: iterable datasets.
        pinning: page-locks the slots; batches are delivered in page-locked memory then.
        clone: how a tensor is copied out.
    """

    def __init__(
        self,
        ring: TrainerSide,
        spare: int,
        ends: bool,
        pinning: Pinning | None = None,
        clone: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone,
    ) -> None:
        self._ring = ring
        self._spare = spare
        self._ends = ends
        self._pinning = pinning
        self._reader = Reader(clone)
        self._overflowed = False

    def take(self) -> Any:
        """The batch that the ring has ready: lent, copied, or NOTHING: its worker has nothing more to give.

        What fails here (unpickling, memory that was overwritten) becomes an ExceptionWrapper, as what fails in a
        worker does.
        """
        ring, pinning = self._ring, self._pinning
        if pinning is not None:
            pinning.free()
        lease = ring.lend()
        outcome = lease.outcome
        if outcome == SKIPPED and self._ends:
            return NOTHING
        if lease.overflowed and not self._overflowed:
            self._overflowed = True
            warn_overflow()
        copy = outcome == KEPT or ring.lent > self._spare or (pinning is not None and not pinning.guard(lease))
        try:
            batch = self._reader.read(lease, copy)
            if pinning is not None:
                batch = pinning.finish(batch, lease)
        except Exception:
            batch = ExceptionWrapper(where="in the trainer, where a batch was read")
            lease.fail()
        return batch
