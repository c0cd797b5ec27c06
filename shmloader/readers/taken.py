"""Which loaders a server takes, their batches, and what it sends of these: NOTE [ Readers on leases ].

The server reads nothing of a batch but its description, as the worker wrote it, so readers unpickle what is nested.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from shmloader.core.lease import Lease
from shmloader.core.ring import give_pages_back
from shmloader.options import Options
from shmloader.system import anonymous_files
from shmloader.trainer.iterator import RingIterator

ON_THE_WAY = 4  # batches that the server holds beside those that a reader of shared batches keeps
MOST_KEPT = 32  # batches that such a reader may keep; their messages must find room in its socket
CELLS = 128  # more than are in use at once: two for each message that is held


class Beside:
    """The file of what neither the socket nor the lease can hold: long messages, and bytes that cannot be lent.

    Args:
        stride: More bytes than any of them has.
    """

    def __init__(self, stride: int) -> None:
        self.fd = anonymous_files.memory("shmloader_beside")
        self._stride = stride
        self._cell = 0

    def write(self, data: bytes | memoryview) -> tuple[int, int]:
        """Write something; returns its place: offset and size."""
        self._cell = (self._cell + 1) % CELLS
        at, had, whole = self._cell * self._stride, 0, memoryview(data)
        while had < whole.nbytes:
            had += os.pwrite(self.fd, whole[had:], at + had)
        return at, whole.nbytes

    def free(self, place: tuple[int, int]) -> None:
        """Give its pages back."""
        give_pages_back(self.fd, *place)


class Taken:
    """A batch that the server has taken.

    Args:
        lease: Of the batch.
        copies: Whether the slot cannot be lent, because its worker keeps it.
        beside: Where the bytes are copied to then.

    Attributes:
        said: What a reader needs to make the batch: the arguments of ServedSide.lease() behind `copies`.
    """

    def __init__(self, lease: Lease, copies: bool, beside: Beside) -> None:
        rows, parts = lease.rows, []
        for k in range(lease.chunks):
            meta, plan = lease.meta(k), lease.plan(k)
            pickled = lease.chunk_objects(k, 0) if rows else b""
            parts.append((meta + plan + pickled, len(meta), len(plan), lease.first_row(k)))
        with memoryview(lease) as whole:
            table = (0, 0) if rows else lease.objects(0)
            self._copy = beside.write(whole) if copies else None
            at = -1 if self._copy is None else self._copy[0]
            self.said = lease.payload, whole.nbytes, table, rows, lease.listed, parts, at
        self._lease = None if copies else lease
        self._beside = beside

    def close(self) -> None:
        """Give the slot back, or the copy.  Twice does no harm."""
        self._lease = None
        if self._copy is not None:
            self._beside.free(self._copy)
        self._copy = None


def check_servable(loader: Any) -> None:
    """Raise a ValueError if this loader cannot be served."""
    try:
        options = Options.of(loader)
    except AttributeError:
        kind = type(loader)
        raise ValueError(
            f"What is served should be a shmloader.DataLoader, but got a {kind.__module__}.{kind.__qualname__}. Have "
            "the function return a loader of shmloader's."
        ) from None
    if not loader.num_workers or not loader.persistent_workers:
        raise ValueError(
            f"A loader that is served needs num_workers above 0 and persistent_workers=True, but has num_workers="
            f"{loader.num_workers} and persistent_workers={loader.persistent_workers}. Give it both."
        )
    if not loader.in_order:
        raise ValueError(
            "A loader that is served gives all readers the same batches in order, but has in_order=False. Leave it out."
        )
    if options.far_workers is not None:
        raise ValueError(
            "A loader that is served has workers on this machine, but this one has far_workers. Leave far_workers= out."
        )
    if options.device is not None or loader.pin_memory:
        raise ValueError(
            f"A loader that is served hands out batches in ordinary memory, but has device={options.device!r}, "
            f"pin_memory={loader.pin_memory}. Leave both out, and copy with batch.to(device) in each reader."
        )


def kept_by_reader(options: Options) -> int:
    """How many batches a reader of shared batches may keep; further ones are copied for it."""
    return min(options.spare_slots, MOST_KEPT)


class ServingIterator(RingIterator):
    """The iterator of a server: each batch is a Taken, whose slot is lent until Taken.close()."""

    stays = True  # readers map the slots
    beside: Beside

    def __init__(self, loader: Any, options: Options) -> None:
        lent = kept_by_reader(options) + ON_THE_WAY + 1  # the last one is never shared, so that one is always free
        super().__init__(loader, replace(options, spare_slots=lent))

    def _batch_reader(self) -> Any:
        self.beside = Beside(self._segment.geometry.slot_stride)
        return self

    def read(self, lease: Lease, copy: bool) -> Taken:
        """Stands for BatchReader.read()."""
        return Taken(lease, copy, self.beside)

    @property
    def memory(self) -> tuple[int, Any]:
        """What readers map: a descriptor, and the geometry."""
        return self._segment.fd, self._segment.geometry
