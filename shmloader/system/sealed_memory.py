"""Memory without a name that is written once, sealed, and mapped by every process that is given its descriptor.
It has the bytes of frozen datasets.  Writer refuses a block that is larger than the memory that is available.

Each process maps it privately (MAP_PRIVATE), so that no process sees another's writes, and no write faults.  A private
mapping also works before Linux 6.7, which refuses a shared one of a file that is sealed against writes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import math
import mmap
import os
import weakref
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy
import torch

from shmloader.system import anonymous_files
from shmloader.system.anonymous_files import Filler, MiB

ALIGNED = 64  # bytes, a cache line
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_living: weakref.WeakSet[SealedMemory] = weakref.WeakSet()


class SealedMemory(mmap.mmap):
    """A mapping of a sealed file.  While a process is being spawned, it is pickled as the file's descriptor.

    Args:
        fd: The file.  The mapping keeps a descriptor of its own, which is closed when the mapping dies.

    Attributes:
        fd: That descriptor.
        address: Where the file is mapped.
    """

    fd: int
    address: int

    def __new__(cls, fd: int) -> SealedMemory:
        made = super().__new__(cls, fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        made.address = int(numpy.frombuffer(made, numpy.uint8).__array_interface__["data"][0])
        made.fd = os.dup(fd)
        weakref.finalize(made, os.close, made.fd).atexit = False  # a process that ends closes it
        _living.add(made)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            raise TypeError(
                "sealed memory can be pickled only for a process that is being spawned. Copy its bytes for any other "
                "use."
            )
        return _received, (reduction.DupFd(self.fd),)


def _received(given: Any) -> SealedMemory:
    fd = given.detach()
    try:
        return SealedMemory(fd)
    finally:
        os.close(fd)


# ----------------------------------------------------------------------------------------- arrays and tensors over it


def array_over(memory: SealedMemory, place: int, dtype: Any, shape: tuple[int, ...], writeable: bool) -> Any:
    """An array whose elements lie in the memory."""
    count = int(numpy.prod(shape, dtype=numpy.int64))
    made = numpy.frombuffer(memory, dtype, count, place).reshape(shape)
    made.flags.writeable = writeable
    return made


def tensor_over(memory: SealedMemory, place: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose elements lie in the memory."""
    bytes_ = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(memory, dtype=torch.uint8, count=bytes_, offset=place).view(dtype).view(shape)


def memory_of(value: Any) -> tuple[SealedMemory, int] | None:
    """The sealed memory in which an array or a tensor begins, and the place; None if it begins in none."""
    if not _living:
        return None
    if isinstance(value, torch.Tensor):
        try:
            address = value.data_ptr() if value.device.type == "cpu" and value.layout is torch.strided else 0
        except RuntimeError:  # it has no storage: a function transform's tensor, or one of a subclass
            return None
    else:
        address = int(value.__array_interface__["data"][0])
    for memory in list(_living):
        if 0 <= (place := address - memory.address) < len(memory):
            return memory, place
    return None


def reduced(value: Any) -> Any:
    """How to pickle an array or a tensor over sealed memory for a process that is being spawned.

    Returns:
        What `reducer_override` of a pickler returns: NotImplemented for everything else.
    """
    kind = type(value)
    if kind not in (numpy.ndarray, torch.Tensor) or (found := memory_of(value)) is None:
        return NotImplemented
    if kind is numpy.ndarray and value.flags.c_contiguous:
        return array_over, (*found, value.dtype, value.shape, value.flags.writeable)
    if kind is torch.Tensor and value.is_contiguous() and not value.requires_grad and not value.__dict__:
        return tensor_over, (*found, value.dtype, tuple(value.shape))
    return NotImplemented


# --------------------------------------------------------------------------------------------------------- writing it


class Counter:
    """Counts the bytes that a Writer would write.

    Attributes:
        size: Bytes so far.
        first: The size when begin() was called last.
    """

    def __init__(self) -> None:
        self.size = self.first = 0

    def begin(self) -> int:
        """From now on, put() counts places from here."""
        self.first = self.size = -(-self.size // ALIGNED) * ALIGNED
        return self.first

    def forget(self, first: int) -> None:
        """Take back all blocks after a place that begin() returned."""
        self.first = self.size = first

    def put(self, data: Any) -> int:
        """Append a block.

        Args:
            data: The block's bytes: any object with the buffer protocol.

        Returns:
            Its place, counted from where begin() was called last: a multiple of 64.
        """
        place = -(-self.size // ALIGNED) * ALIGNED
        with memoryview(data) as block:
            self.size = place + block.nbytes
        return place - self.first


class Writer(Counter):
    """Writes blocks one after the other into a file without a name, and seals it."""

    def __init__(self) -> None:
        super().__init__()
        self._fd = anonymous_files.memory("shmloader_frozen", seals=True)
        self._filler = Filler(self._fd)

    def put(self, data: Any) -> int:
        """Write a block; see Counter.put.

        Raises:
            MemoryError: The machine, or its control group, has less memory available.
        """
        place = super().put(data)
        with memoryview(data) as whole, _bytes_of(whole) as block:
            self._filler.write(block, self.first + place, functools.partial(no_room, block.nbytes))
        return place

    def sealed(self) -> SealedMemory:
        """The blocks, sealed and mapped."""
        anonymous_files.set_size(self._fd, max(self.size, 1))
        with contextlib.suppress(OSError):  # it is no memfd: NOTE [ Sandboxes ]
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, SEALS)
        try:
            return SealedMemory(self._fd)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise no_room(self.size, "the address space of the process is full") from None

    def close(self) -> None:
        """Close the file; a mapping of it stays."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _bytes_of(view: memoryview) -> memoryview:
    return view.cast("B") if view.nbytes else memoryview(b"")


class NoRoom(MemoryError):
    """There is no memory for what is to be frozen."""


def no_room(size: int, why: str) -> NoRoom:
    """The error for missing memory.

    Args:
        size: Bytes that would be taken.
        why: A clause that names the limit.
    """
    return NoRoom(
        f"freezing the dataset needs {size // MiB} MiB more of memory: {why}. Freeze fewer attributes, or load fewer "
        "samples."
    )
