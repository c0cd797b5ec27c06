"""The shared memory: created without a name, in /dev/shm or a memfd (SHMLOADER_RING_MEMORY), and passed to a child.
It decides how much address space is reserved, and has the error for too many open files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from multiprocessing import reduction
from typing import Any

import posix_ipc

from shmloader.core.ring import Mapping
from shmloader.core.trainer import TrainerSide
from shmloader.ring.growth import (
    FIRST_COMMIT,
    NO_PAGES,
    PAGE,
    Geometry,
    Growth,
    MiB,
    Place,
    RingMemory,
    find_pages,
    free_in_shm,
    in_units,
    reserve,
    say_moved,
    up,
)
from shmloader.system.anonymous_files import SHM_MOUNT, set_size
from shmloader.system.limits import is_refusal, refused
from shmloader.system.parents_death import follow
from shmloader.system.stack_samples import SampleSheet

LARGE_SLOT = 4 << 30  # bytes; batches of more are rare
MOST_RESERVED_TO_STAY = 16 << 40  # of addresses, of which a process has 128 TiB
MOST_RESERVED = 1 << 40  # a terabyte of address space for a ring: mapping it takes microseconds, but `top` shows it


def physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def _posix_segment() -> int:
    """Memory of /dev/shm that never has a name, so no process can find it, and a killed run leaves none.

    If the kernel or the mount has no nameless files (O_TMPFILE), it has a name for a few microseconds, until it is
    unlinked.  A process that is killed in between leaves an empty file.
    """
    with contextlib.suppress(OSError):  # posix_ipc reports what is wrong with the mount
        return os.open(SHM_MOUNT, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    shm = posix_ipc.SharedMemory(None, posix_ipc.O_CREX, mode=0o600)
    shm.unlink()
    return int(shm.fd)


class Segment(Growth):
    """Shared memory for one ring.

    The trainer creates it.  A worker gets it by fork, or pickled while it is being spawned.  It has no name: the memory
    exists while a process has a descriptor or a mapping of it.

    Args:
        workers, entries, batches, spare: The ring's shape (see reserve()).
        memory: "posix" (/dev/shm), "memfd" (not limited by that mount), or "auto": /dev/shm, from which payloads move
            to a memfd if it has no room for all of them.
        budget: How many bytes all slots together may take; None: as many as there are.
        remember: Whether a worker leaves its random states for its successor (random_states.py).
        streams: Whether the dataset is a stream, and workers leave its state after each batch.
        stays: Whether each slot stays where it is mapped first, because it is page-locked or others map it.
        detail: Whether workers count where they spend their time: NOTE [ Stack samples ].

    Attributes:
        sheet: The memory for these counts; None without `detail`.

    Raises:
        MemoryError: The process may not map the ring, or the machine does not have the memory.
        OSError: No descriptor is left (RLIMIT_NOFILE).
    """

    def __init__(
        self,
        workers: int,
        entries: int,
        batches: int,
        spare: int,
        memory: RingMemory,
        budget: int | None,
        remember: bool,
        streams: bool = False,
        detail: bool = False,
        stays: bool = False,
    ) -> None:
        self.sheet: SampleSheet | None = None
        self.memory = memory
        self.no_memfd = ""
        self.budget = budget
        self.trainer = os.getpid()
        self.spare = spare
        self.fd, self.memfd = -1, -1
        try:
            self.fd, self.memfd = self._create(memory)
            self.geometry, self.mapping = self._map((workers, entries, batches, spare, remember, streams), stays)
            self._commit_control()
            if detail:
                self.sheet = SampleSheet(workers)
        except OSError as error:
            self.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise OSError(error.errno, too_many_files()) from None
            raise
        except BaseException:
            self.close()
            raise

    def _create(self, memory: RingMemory) -> tuple[int, int]:
        """The descriptors of the segment, and of the memfd into which its payloads may move; -1: they may not."""
        if memory != "posix":
            try:
                self.memfd = os.memfd_create("shmloader", os.MFD_CLOEXEC)
            except OSError as error:
                if not is_refusal(error):
                    raise
                self.no_memfd = refused("memfd_create", error)
        if memory == "memfd" and self.memfd >= 0:
            return self.memfd, -1
        try:
            return _posix_segment(), self.memfd
        except (posix_ipc.Error, OSError) as error:  # it is missing, another user's, read-only, or out of inodes
            number = getattr(error, "errno", None)
            if memory == "posix" or number in (errno.EMFILE, errno.ENFILE):
                raise
            if self.no_memfd:
                raise OSError(number, f"{SHM_MOUNT} cannot be used here ({error}), and {self.no_memfd}") from None
        say_moved(f"{SHM_MOUNT} cannot be used here")
        return self.memfd, -1

    def _map(self, shape: tuple[int, int, int, int, bool, bool], stays: bool) -> tuple[Geometry, Mapping]:
        """Map slots so widely that most grow in place: NOTE [ Rooms ] in ring.pxd."""
        reserved = min(4 * physical_memory(), MOST_RESERVED)
        tail = up(physical_memory(), PAGE)
        if stays:
            payloads = reserve(*shape, reserved).payloads
            reserved = max(reserved, min(payloads * min(physical_memory(), LARGE_SLOT), MOST_RESERVED_TO_STAY))
            tail = 0
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:  # which is for the whole process, also for spawned workers
            reserved = min(reserved, limit // (4 if stays else 16))
        while True:
            geometry = reserve(*shape, reserved, tail)
            try:
                for fd in (self.fd, self.memfd):
                    if fd >= 0:
                        set_size(fd, geometry.size)
                return geometry, Mapping(self.fd, geometry.mapped)
            except OSError as error:
                if error.errno not in (errno.ENOMEM, errno.EFBIG, errno.EINVAL):
                    raise
                if tail and error.errno == errno.EFBIG:  # ulimit -f
                    tail = 0
                    continue
                if geometry.slot_stride <= MiB:
                    raise MemoryError(
                        f"shmloader could not map {in_units(geometry.mapped)} for a ring of {geometry.payloads} slots "
                        f"({os.strerror(error.errno)}). The process may use "
                        f"{_limit(resource.RLIMIT_AS)} of address space (ulimit -v) and files of "
                        f"{_limit(resource.RLIMIT_FSIZE)} (ulimit -f). Raise them, or lower num_workers, "
                        "prefetch_factor or spare_slots."
                    ) from None
                reserved //= 2

    def _commit_control(self) -> None:
        geometry = self.geometry
        first = geometry.batches + self.spare
        if why := self.forbidden(FIRST_COMMIT):
            raise MemoryError(why)
        wanted = [(Place(0), geometry.area_at)]
        wanted += [(Place(geometry.area_offset(k)), geometry.area_commit) for k in range(geometry.entries)]
        wanted += [(Place(geometry.slot_at + k * geometry.slot_stride), FIRST_COMMIT) for k in range(first)]
        try:
            for place, size in wanted:
                if find_pages(self.fd, place, size) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if error.errno not in NO_PAGES:
                raise
            if self.memfd < 0:
                raise MemoryError(self.no_room(first, FIRST_COMMIT)) from None
            say_moved(f"{SHM_MOUNT} has {in_units(free_in_shm())} free, too little even for the ring's control words")
            os.close(self.fd)
            self.fd, self.memfd = self.memfd, -1
            self.mapping = Mapping(self.fd, geometry.mapped)
            self._commit_control()

    def format(self, ring: TrainerSide, label: bytes = b"") -> None:
        """Write the control words of a fresh ring, and record how much was committed for it.

        Args:
            ring: The trainer's side.
            label: The ring's name for onlookers.
        """
        ring.format(label)
        for payload in range(self.geometry.batches + self.spare):
            ring.note_committed(payload, FIRST_COMMIT)

    def close(self) -> None:
        """Close the descriptors.  Mappings, and lent batches, live on."""
        if self.sheet is not None:
            self.sheet.close()
        for fd in (self.fd, self.memfd):
            if fd >= 0:
                os.close(fd)
        self.fd, self.memfd = -1, -1

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("fd", "memfd", "mapping")}
        state["fds"] = [reduction.DupFd(fd) for fd in (self.fd, self.memfd) if fd >= 0]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        follow(state["trainer"])  # now, because the dataset is unpickled next, which may take long
        fds = [fd.detach() for fd in state.pop("fds")]
        self.__dict__.update(state)
        self.fd, self.memfd = fds[0], fds[1] if len(fds) > 1 else -1
        self.mapping = Mapping(self.fd, self.geometry.mapped)


def too_many_files() -> str:
    return (
        f"too many open files: this process may have {_limit(resource.RLIMIT_NOFILE, '{}')} (ulimit -n). A ring takes "
        "5, one more if workers are spawned, and one more with SHMLOADER_DETAIL=1. Each living worker takes 2 or 3. "
        "Raise the limit, or lower num_workers."
    )


def _limit(which: int, form: str = "{} bytes") -> str:
    soft = resource.getrlimit(which)[0]
    return "an unlimited number" if soft == resource.RLIM_INFINITY else form.format(soft)
