"""What all workers are given alike, pickled once: it lies in nameless memory, and each spawned worker reads it there.

multiprocessing pickles a process's arguments anew for each process, and writes them into its pipe, which holds no more
than 64 KiB: where a dataset pickles larger, the trainer waits for each worker to have imported torch before it starts
the next one.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import pickle
from multiprocessing import reduction
from typing import Any

import torch

from shmloader._multiprocessing import given_descriptors
from shmloader.limits import available_memory
from shmloader.signals import let_through

MiB = 1 << 20
UNASKED = MiB  # bytes that are written without asking whether the machine has them
STEP = 64 * MiB  # bytes that are written before it is asked again

# By this name a CUDA tensor is rebuilt from its pickle, and by that its reader is counted: by one, not by several.
COUNTS_ITS_READER = b"rebuild_cuda_tensor"


class Parcel(dict[str, Any]):
    """A dict that is pickled once for all processes that are spawned with it; each gets a plain dict of its own.

    Unpickled it is while its process unpickles the rest, as ever: locks, queues, connections, proxies and shared
    tensors in it are what they would be.  What forks gets the parcel itself, and nothing is pickled.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self._packed: _Packed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # In torch's file_system strategy each pickle of a tensor counts as one reader, and its memory's name goes when
        # all that were counted have gone: there it cannot be another's as well.
        shared = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
        given = given_descriptors() if shared else None
        if given is None:
            return dict, (dict(self),)
        if self._packed is None or not self._packed.give(given):
            self.close()
            self._packed = _Packed(dict(self), given)
        return self._packed.reference()

    def close(self) -> None:
        """Give the memory back, as soon as no process reads it any more; what is spawned next has it pickled anew."""
        if self._packed is not None:
            self._packed.close()
            self._packed = None


class _Packed:
    """A pickle in nameless memory, and the descriptors that it speaks of.

    A pickle made while a process is spawned speaks of descriptors by their number (spawn), or by their place in the
    list of those that the process is given (forkserver).  So every further process is given the same ones, at the same
    places.

    Args:
        value: what to pickle.
        given: the descriptors that the process which is being spawned will have; more come as they are pickled.

    Raises:
        MemoryError: the machine does not have the memory.
        OSError: no descriptor is left.
    """

    def __init__(self, value: Any, given: list[int]) -> None:
        self._first = len(given)
        self._fd = os.memfd_create("shmloader_parcel", os.MFD_CLOEXEC)
        try:
            pages = _Pages(self._fd)
            with let_through():  # it may take long
                reduction.dump(value, pages)
        except BaseException:
            self.close()
            raise
        self._size = pages.size
        self._for_all = not pages.counts_its_reader
        self._given = given[self._first :]
        self._files = [_file(fd) for fd in self._given]

    def give(self, given: list[int]) -> bool:
        """Give a further process what the pickle speaks of; False where it must have a pickle of its own."""
        files = [_file(fd) for fd in self._given]
        # a number may be another file's by now: the dataset has another tensor, or the pickled one was a passing copy
        if not self._for_all or len(given) != self._first or files != self._files or None in files:
            return False
        given.extend(self._given)
        return True

    def reference(self) -> tuple[Any, ...]:
        return _unpack, (reduction.DupFd(self._fd), self._size)

    def close(self) -> None:
        os.close(self._fd)


class _Pages:
    """A file, to a pickler, that asks for memory before it takes it: what is too large is an error and not a kill."""

    def __init__(self, fd: int) -> None:
        self.size = 0
        self.counts_its_reader = False
        self._fd = fd
        self._allowed = UNASKED
        self._has_cuda = torch.cuda.is_initialized()

    def write(self, written: Any) -> int:
        with memoryview(written).cast("B") as data:
            if self.size + data.nbytes > self._allowed:
                self._ask(data.nbytes)
            if self._has_cuda and not self.counts_its_reader:  # a name is never divided between two writes
                self.counts_its_reader = COUNTS_ITS_READER in bytes(written)
            at = 0
            while at < data.nbytes:
                try:
                    at += os.write(self._fd, data[at:])
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                        raise
                    raise MemoryError(_no_room(self.size + data.nbytes, os.strerror(error.errno))) from None
            self.size += at
        return at

    def _ask(self, size: int) -> None:
        available = available_memory()
        if size > available:
            raise MemoryError(_no_room(self.size + size, f"{available // MiB} MiB are available"))
        self._allowed = self.size + max(size, min(STEP, available))


def _no_room(size: int, why: str) -> str:
    return (
        f"the dataset, pickled for the workers, takes more than {size // MiB} MiB of memory: {why}. Have it hold less "
        "(names of files for their contents), or start the workers by fork, which pickles nothing"
    )


def _unpack(memory: Any, size: int) -> Any:
    """In a worker: the value, from the memory that holds its pickle; nothing of that is kept."""
    fd = memory.detach()
    collecting = gc.isenabled()
    gc.disable()  # a list of a million tuples would be walked through again and again while it grows
    try:
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as pages, memoryview(pages) as pickled:
            return pickle.loads(pickled)
    finally:
        os.close(fd)
        if collecting:
            gc.enable()


def _file(fd: int) -> tuple[int, int] | None:
    """What a descriptor is open on; None where it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino
