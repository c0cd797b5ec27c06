"""The arguments that all workers share, pickled once into nameless memory, from which each spawned worker reads them.
Refuses a dataset that takes more memory than is free.

multiprocessing pickles the arguments again for each process, and writes them into a pipe that holds 64 KiB.  With a
larger dataset, the trainer could start the next worker only after the one before had imported torch.
"""

from __future__ import annotations

import functools
import gc
import mmap
import os
import pickle
from multiprocessing import reduction
from typing import Any

import torch

from shmloader.private.of_multiprocessing import given_descriptors
from shmloader.system import anonymous_files
from shmloader.system.anonymous_files import Filler, MiB
from shmloader.system.sealed_memory import reduced
from shmloader.system.signals import let_through, unblocked

# A CUDA tensor's pickle has this name in it.  It counts one reader, so only one process may unpickle it.
COUNTS_ITS_READER = b"rebuild_cuda_tensor"


class SpawnArguments(dict[str, Any]):
    """A dict that is pickled once for all processes that are spawned with it.  Each of them gets a plain dict.

    It is unpickled while its process unpickles the rest, as by itself, so locks, queues, connections, proxies
    and shared tensors in it work as usual.  A forked process gets this object itself, and nothing is pickled.

    Pickling may make tensors: a torch.Generator makes one of its state, and so may a `__getstate__`.  Nobody but the
    pickler holds them.  If they died before a process had their descriptors, it could not unpickle.  So the pickler is
    kept until all_started().
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self._packed: _Packed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # In torch's file_system strategy each pickle of a tensor counts one reader, and the memory's name goes when all
        # counted readers are gone.  So several processes cannot share a pickle there.
        shared = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
        given = given_descriptors() if shared else None
        if given is None:
            return dict, (dict(self),)
        if self._packed is None or not self._packed.give(given):
            self._drop()
            self._packed = _Packed(dict(self), given)
        return self._packed.reference()

    def all_started(self) -> None:
        """Drop what pickling has made, because the processes have its descriptors.  Others may take their places."""
        if self._packed is not None:
            self._packed.pickler = None

    def close(self) -> None:
        """Give the memory back, because no further process is expected.  A later process gets a new pickle."""
        self._drop()

    def _drop(self) -> None:
        if self._packed is not None:
            self._packed.close()
            self._packed = None


class _Packed:
    """A pickle in nameless memory, and the descriptors that it names.

    A pickle that is made while a process is spawned names descriptors by their number (spawn), or by their place in the
    list that the process gets (forkserver).  So every further process gets the same ones, in the same places.

    Args:
        value: What to pickle.
        given: The descriptors that the process being spawned will have; pickling the value adds to them.

    Raises:
        MemoryError: The machine does not have the memory.
        OSError: No descriptor is left.
    """

    def __init__(self, value: Any, given: list[int]) -> None:
        self._first = len(given)
        self._fd = anonymous_files.memory("shmloader_parcel")
        try:
            pages = Pages(self._fd)
            self.pickler: Pickler | None = Pickler(pages)
            with unblocked(), let_through():  # pickling may take long
                self.pickler.dump(value)
            self._named = given[self._first :]
            self._files = [_file_of(fd) for fd in self._named]
        except BaseException:
            self.close()
            raise
        self._size = pages.size
        self._for_all = not pages.counts_its_reader

    def give(self, given: list[int]) -> bool:
        """Give another process the descriptors that the pickle names; False if it needs a pickle of its own."""
        files = [_file_of(fd) for fd in self._named]
        # A number may name another file now: the dataset has another tensor, or the pickled one was a temporary copy.
        if not self._for_all or len(given) != self._first or files != self._files or None in files:
            return False
        given.extend(self._named)
        return True

    def reference(self) -> tuple[Any, ...]:
        return _unpack, (reduction.DupFd(self._fd), self._size)

    def close(self) -> None:
        os.close(self._fd)


class Pickler(reduction.ForkingPickler):
    """Pickles arrays and tensors of a frozen dataset as places in its memory, and not as copies."""

    def reducer_override(self, value: Any) -> Any:
        return reduced(value)


class Pages:
    """A file for a pickler."""

    def __init__(self, fd: int) -> None:
        self.size = 0
        self.counts_its_reader = False
        self._filler = Filler(fd)
        self._has_cuda = torch.cuda.is_initialized()

    def write(self, written: Any) -> int:
        with memoryview(written).cast("B") as data:
            if self._has_cuda and not self.counts_its_reader:  # a name is never split between two writes
                self.counts_its_reader = COUNTS_ITS_READER in bytes(written)
            self._filler.write(data, self.size, functools.partial(_no_room, self.size + data.nbytes))
            self.size += data.nbytes
            return data.nbytes


def _no_room(size: int, why: str) -> MemoryError:
    return MemoryError(
        f"the dataset, pickled for the workers, takes more than {size // MiB} MiB of memory: {why}. Have it hold less "
        "(file names instead of contents), or start the workers by fork, which pickles nothing."
    )


def _file_of(fd: int) -> tuple[int, int] | None:
    """The file of a descriptor; None if the descriptor is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _unpack(memory: Any, size: int) -> Any:
    """In a worker: the value, from the memory that has its pickle.  The memory is not kept."""
    fd = memory.detach()
    collecting = gc.isenabled()
    gc.disable()  # otherwise it walks again and again through a list of a million tuples while the list grows
    try:
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as pages, memoryview(pages) as pickled:
            return pickle.loads(pickled)
    finally:
        os.close(fd)
        if collecting:
            gc.enable()
