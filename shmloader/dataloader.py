"""DataLoader: torch's, with batches that travel through a ring of shared memory."""

from __future__ import annotations

import platform
import sys
import weakref
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from shmloader.rows import is_row_wise

if sys.platform == "linux":  # elsewhere there are no extensions, and DataLoader says so
    from shmloader import _torch
    from shmloader.chunks import ChunkIterator
    from shmloader.iterator import DirectIterator, RingIterator

T_co = TypeVar("T_co", covariant=True)

_iterators: weakref.WeakSet[RingIterator] = weakref.WeakSet()  # not in the loader, whose __dict__ others copy


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """Loads batches in worker processes and hands them over through one ring of shared memory.

    A drop-in for `torch.utils.data.DataLoader`: its whole signature, the same batches in the same order from the same
    seed, bit for bit.  A batch is delivered as tensors over the slot that a worker collated it into, without a copy.
    What the ring does not carry yet is loaded by torch's own iterator: DataPipes, and `pin_memory=True` where there is
    an accelerator.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
        worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers, pin_memory_device,
        in_order: as in torch.
        spare_slots: delivered batches that may be lent at once, before further ones are handed out as copies
            (default 2: the batch in use and the one before it).  Each costs one slot of shared memory.
        ring_memory: where the ring lies: "posix" (/dev/shm), "memfd" (memory that the size of /dev/shm does not
            bound), or "auto" (default): /dev/shm, and a memfd where /dev/shm is too small.
        max_ring_bytes: bytes of memory that the ring's slots may take in all (default None: what there is).  A batch
            that would have them take more is a MemoryError in its place, before anything is committed for it.
        on_worker_death: "raise" (default): torch's error, with the batch that the worker held.  "respawn": another
            process takes its place and makes that batch again, in its place in the order and, as the states of
            `random`, `numpy.random` and `torch` are handed down, with the same values (a generator or a cache that the
            dataset keeps for itself begins anew).  The third death in a row over one batch raises.  With `timeout`, a
            worker that holds a batch for longer is killed and replaced as well.  An IterableDataset's position is
            lost with its worker, so there a death raises.
        schedule: who makes which batch.  "round_robin" (default): as in torch, batch k is made by worker k %
            num_workers, so a slow one holds the others up.  "steal": the next one is made by whoever is free; batches
            still come in order.  `random`, `numpy.random` and torch's generator are then seeded before each sample,
            from the loader's seed, the epoch, the batch and the place in it (about 6 us a sample), so batches are the
            same for any number of workers, but not torch's where samples are random.
        chunk_size: samples that a worker makes at once (default None: a whole batch).  A batch is cut into chunks of
            so many rows, which several workers make at the same time, straight into the one slot.  For map-style
            datasets whose samples are alike in structure, dtype and shape, with automatic batching, and
            `default_collate` or a collate function that is marked with `shmloader.row_wise`.  `prefetch_factor` then
            counts chunks.  With "steal", chunks change no value; with "round_robin", random draws depend on them.
            Neither means anything without workers.

    Raises:
        ValueError: an argument is out of its range; torch's own text for torch's own arguments.
        RuntimeError: this is not 64-bit Linux.
    """

    # for a subclass that has another __init__
    spare_slots = 2
    ring_memory = "auto"
    max_ring_bytes: int | None = None
    on_worker_death = "raise"
    schedule = "round_robin"
    chunk_size: int | None = None

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        spare_slots: int = 2,
        ring_memory: str = "auto",
        max_ring_bytes: int | None = None,
        on_worker_death: str = "raise",
        schedule: str = "round_robin",
        chunk_size: int | None = None,
    ) -> None:
        _check_platform()
        _check_ring(spare_slots, ring_memory, max_ring_bytes, on_worker_death)
        _check_work(schedule, chunk_size)
        self.spare_slots = spare_slots
        self.ring_memory = ring_memory
        self.max_ring_bytes = max_ring_bytes
        self.on_worker_death = on_worker_death
        self.schedule = schedule
        self.chunk_size = chunk_size
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._check_division()

    def _check_division(self) -> None:
        """Raise where work cannot be stolen or cut as was asked for."""
        options = {"schedule='steal'": self.schedule == "steal", "chunk_size": self.chunk_size is not None}
        for name, asked in options.items():
            if not asked:
                continue
            if self._dataset_kind != _torch._DatasetKind.Map or isinstance(self.dataset, _torch.MapDataPipe):
                raise ValueError(
                    f"{name} needs a map-style dataset, but got {type(self.dataset).__name__}: each worker has its own "
                    "part of a stream, which no other can go on with"
                )
            if not self.in_order:
                raise ValueError(
                    f"{name} delivers batches in order, but got in_order=False: leave one of the two out; a slow batch "
                    "holds no worker up where work is stolen"
                )
        if self.chunk_size is None:
            return
        if self.batch_sampler is None:
            raise ValueError("chunk_size cuts batches, but got batch_size=None: leave one of the two out")
        if not is_row_wise(self.collate_fn):
            raise ValueError(
                f"chunk_size needs default_collate or a collate_fn that is marked with shmloader.row_wise, but got "
                f"collate_fn={self.collate_fn!r}: mark it if what it makes of some samples is their rows of the batch"
            )

    # _get_iterator is torch's: its profiler knows a loader without workers by finding it called from __iter__, both in
    # torch's file.

    def __iter__(self) -> Any:
        if not self._rides_the_ring():
            return super().__iter__()
        if not self.persistent_workers:
            return self._ring_iterator()
        if self._iterator is None or getattr(self._iterator, "_shutdown", False):  # there is none, or it was closed
            self._iterator = self._ring_iterator()
        else:
            self._iterator._reset(self)
        return self._iterator

    def _ring_iterator(self) -> RingIterator:
        self.check_worker_number_rationality()
        iterator: RingIterator
        if self.chunk_size is not None:
            iterator = ChunkIterator(self)
        elif self.in_order and self._dataset_kind == _torch._DatasetKind.Map:
            iterator = DirectIterator(self)
        else:
            iterator = RingIterator(self)
        _iterators.add(iterator)
        return iterator

    def _rides_the_ring(self) -> bool:
        """Whether the ring carries what this loader asks for; torch's own iterator does otherwise."""
        return (
            self.num_workers > 0
            and type(self)._get_iterator is torch.utils.data.DataLoader._get_iterator  # else a subclass makes its own
            and not isinstance(self.dataset, (_torch.IterDataPipe, _torch.MapDataPipe))
            and not (self.pin_memory and torch.accelerator.is_available())
            and _torch.why_not() is None
        )

    def close(self) -> None:
        """End the workers of all iterators of this loader and give their memory back.

        Batches already delivered stay as they are, and iterating again starts anew.
        """
        for iterator in list(_iterators):
            if iterator.loader() is self:
                iterator.close()
        self._iterator = None

    def __enter__(self) -> DataLoader[T_co]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_platform() -> None:
    if sys.platform != "linux" or sys.maxsize < 2**32:
        raise RuntimeError(
            f"shmloader needs 64-bit Linux, and this is {sys.platform} on {platform.machine()}: "
            "use torch.utils.data.DataLoader here"
        )


def _check_ring(spare_slots: int, ring_memory: str, max_ring_bytes: int | None, on_worker_death: str) -> None:
    if isinstance(spare_slots, bool) or not isinstance(spare_slots, int) or spare_slots < 0:
        raise ValueError(
            f"spare_slots should be a non-negative integer, but got spare_slots={spare_slots!r}; "
            "0 hands every batch out as a copy, 2 is the default"
        )
    if ring_memory not in ("auto", "posix", "memfd"):
        raise ValueError(f"ring_memory should be 'auto', 'posix' or 'memfd', but got ring_memory={ring_memory!r}")
    if max_ring_bytes is not None and (
        isinstance(max_ring_bytes, bool) or not isinstance(max_ring_bytes, int) or max_ring_bytes <= 0
    ):
        raise ValueError(
            f"max_ring_bytes should be a positive integer of bytes, or None, but got max_ring_bytes={max_ring_bytes!r}"
        )
    if on_worker_death not in ("raise", "respawn"):
        raise ValueError(f"on_worker_death should be 'raise' or 'respawn', but got on_worker_death={on_worker_death!r}")


def _check_work(schedule: str, chunk_size: int | None) -> None:
    if schedule not in ("round_robin", "steal"):
        raise ValueError(f"schedule should be 'round_robin' or 'steal', but got schedule={schedule!r}")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size <= 0):
        raise ValueError(
            f"chunk_size should be a positive integer of samples, or None, but got chunk_size={chunk_size!r}"
        )
