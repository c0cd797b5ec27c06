"""The shared memory: created without a name, with wide addresses, committed on demand, and passed to a child."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import warnings
from multiprocessing import reduction
from typing import Any, Literal

import posix_ipc

from shmloader._ring import Mapping, Ring
from shmloader._trainer import TrainerSide
from shmloader.ring.geometry import FIRST_COMMIT, PAGE, SPARE_COMMIT, Geometry, MiB, reserve, up
from shmloader.system.limits import available_memory
from shmloader.system.parents_death import follow

RingMemory = Literal["auto", "posix", "memfd"]
RING_MEMORIES = ("auto", "posix", "memfd")

SHM_MOUNT = "/dev/shm"
NO_PAGES = (errno.ENOSPC, errno.ENOMEM)

MOST_RESERVED = 1 << 40  # a terabyte of address space for a ring; it maps in microseconds, but `top` shows it


def physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * PAGE


def free_in_shm() -> int:
    """Bytes free in /dev/shm, 0 where there is none."""
    try:
        mount = os.statvfs(SHM_MOUNT)
    except OSError:
        return 0
    return mount.f_bavail * mount.f_frsize


def _posix_segment() -> int:
    """Memory of /dev/shm that never has a name: nobody can find it, and a run that is killed leaves none.

    If the kernel or the mount has no nameless files (O_TMPFILE), it has a name for a few microseconds, until it is
    unlinked.  A process that is killed in between leaves an empty file.
    """
    with contextlib.suppress(OSError):  # whatever is wrong with the mount, posix_ipc says so
        return os.open(SHM_MOUNT, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    shm = posix_ipc.SharedMemory(None, posix_ipc.O_CREX, mode=0o600)
    shm.unlink()
    return int(shm.fd)


def _memfd_segment() -> int:
    return os.memfd_create("shmloader", os.MFD_CLOEXEC)


def _allocate(fd: int, at: int, size: int, least: int) -> int:
    """Have pages for `size` bytes at this place, or for `least` if there are no more; returns for how many.

    If it is refused, nothing is left behind: the kernel takes back the pages that it had found.
    """
    try:
        os.posix_fallocate(fd, at, size)
        return size
    except OSError as error:
        if error.errno not in NO_PAGES or least == size:
            raise
    os.posix_fallocate(fd, at, least)
    return least


class Segment:
    """Shared memory for one ring.

    The trainer creates it.  A worker gets it by fork, or pickled while it is being spawned.  It has no name: the memory
    exists for those who hold a descriptor or a mapping, and goes with the last of them.

    Args:
        workers, entries, batches, spare: The ring's shape (see reserve()).
        memory: "posix" (/dev/shm), "memfd" (not limited by that mount), or "auto": /dev/shm, from which payloads move
            to a memfd if it has no room for all of them.
        budget: How many bytes all slots together may take; None: as many as there are.
        remember: Whether a worker leaves what its successor needs to go on drawing (random_states.py).
        streams: Whether the dataset is a stream, and workers leave what it says of itself behind each batch.

    Raises:
        MemoryError: The process may not map what the ring needs, or the machine does not have it.
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
    ) -> None:
        self.memory = memory
        self.budget = budget
        self.trainer = os.getpid()
        self.spare = spare
        self.fd, self.memfd = -1, -1
        try:
            self.fd, self.memfd = self._create(memory)
            self.geometry, self.mapping = self._map(workers, entries, batches, spare, remember, streams)
            self._commit_control()
        except OSError as error:
            self.close()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise OSError(error.errno, too_many_files()) from None
            raise
        except BaseException:
            self.close()
            raise

    def _create(self, memory: RingMemory) -> tuple[int, int]:
        if memory == "memfd":
            return _memfd_segment(), -1
        try:
            fd = _posix_segment()
        except (posix_ipc.Error, PermissionError, FileNotFoundError):
            if memory == "posix":
                raise
            _say_moved(f"{SHM_MOUNT} cannot be used here")
            return _memfd_segment(), -1
        if memory == "posix":
            return fd, -1
        try:
            return fd, _memfd_segment()
        except BaseException:
            os.close(fd)
            raise

    def _map(
        self, workers: int, entries: int, batches: int, spare: int, remember: bool, streams: bool
    ) -> tuple[Geometry, Mapping]:
        """Map as widely as the process may, so that slots can grow in place.  That takes addresses, not memory."""
        reserved = min(4 * physical_memory(), MOST_RESERVED)
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            reserved = min(reserved, limit // 4)  # the limit is for the whole process, and for spawned workers too
        while True:
            geometry = reserve(workers, entries, batches, spare, remember, streams, reserved)
            try:
                for fd in (self.fd, self.memfd):
                    if fd >= 0:
                        os.ftruncate(fd, geometry.size)
                return geometry, Mapping(self.fd, geometry.size)
            except OSError as error:
                if error.errno not in (errno.ENOMEM, errno.EFBIG, errno.EINVAL):
                    raise
                if geometry.slot_stride <= MiB:
                    raise MemoryError(
                        f"shmloader could not map {_bytes(geometry.size)} for a ring of {geometry.payloads} slots "
                        f"({os.strerror(error.errno)}); the process may use "
                        f"{_limit(resource.RLIMIT_AS)} of address space (ulimit -v) and files of "
                        f"{_limit(resource.RLIMIT_FSIZE)} (ulimit -f): raise them, or lower num_workers, "
                        "prefetch_factor or spare_slots"
                    ) from None
                reserved //= 2

    def _commit_control(self) -> None:
        geometry = self.geometry
        first = geometry.batches + self.spare
        if why := self._forbidden(FIRST_COMMIT):
            raise MemoryError(why)
        wanted = [(0, geometry.area_at)]
        wanted += [(geometry.area_offset(k), geometry.area_commit) for k in range(geometry.entries)]
        wanted += [(geometry.slot_at + k * geometry.slot_stride, FIRST_COMMIT) for k in range(first)]
        try:
            for at, size in wanted:
                os.posix_fallocate(self.fd, at, size)
        except OSError as error:
            if error.errno not in NO_PAGES:
                raise
            if self.memfd < 0:
                raise MemoryError(self._no_room(first, FIRST_COMMIT)) from None
            _say_moved(f"{SHM_MOUNT} has {_bytes(free_in_shm())} free, too little even for the ring's control words")
            os.close(self.fd)
            self.fd, self.memfd = self.memfd, -1
            self.mapping = Mapping(self.fd, geometry.size)
            self._commit_control()

    def format(self, ring: TrainerSide) -> None:
        """Write the control words of a fresh ring, and say what was committed for it."""
        ring.format()
        for payload in range(self.geometry.batches + self.spare):
            ring.note_committed(payload, FIRST_COMMIT)

    def commit_task(self, entry: int, size: int) -> int:
        """Have pages for a task of `size` bytes in an entry's area; returns for how many.  By the trainer."""
        if size > self.geometry.area_stride:
            raise MemoryError(
                f"a batch's indices take {_bytes(size)}, and {_bytes(self.geometry.area_stride)} are reserved for "
                "them: use a smaller batch_size, or indices that pickle smaller"
            )
        return self._commit_area(entry, size)

    def commit_answer(self, entry: int, size: int) -> int:
        """Have pages for `size` bytes of an entry's area; returns for how many.  By the worker that holds it."""
        if size > self.geometry.area_stride:
            raise MemoryError(
                f"the indices of a batch and the description of what it holds take {_bytes(size)}, and "
                f"{_bytes(self.geometry.area_stride)} are reserved for them: use a smaller batch_size, or batches of "
                "fewer tensors"
            )
        return self._commit_area(entry, size)

    def commit_state(self, cell: int, size: int) -> int:
        """Have pages for `size` bytes of a cell; returns for how many.  By the worker that may write there."""
        geometry = self.geometry
        if size > geometry.cell_stride:
            raise MemoryError(
                f"what a stream says of itself takes {_bytes(size)}, and {_bytes(geometry.cell_stride)} are reserved "
                "for it: have its state_dict() return less"
            )
        least, size = up(size, PAGE), min(up(size + size // 4, PAGE), geometry.cell_stride)
        try:
            return _allocate(self.fd, geometry.cell_at + cell * geometry.cell_stride, size, least)
        except OSError as error:
            raise MemoryError(self._no_room(geometry.cells, least)) from error

    def _commit_area(self, entry: int, size: int) -> int:
        least, size = up(size, PAGE), min(up(size + size // 4, PAGE), self.geometry.area_stride)
        try:
            return _allocate(self.fd, self.geometry.area_offset(entry), size, least)
        except OSError as error:
            raise MemoryError(self._no_room(self.geometry.entries, least)) from error

    def commit(self, ring: Ring, payload: int, size: int, filled: int) -> None:
        """Have pages for the first `size` bytes of a payload, of which the first `filled` hold data.  By its holder.

        A payload grows by a quarter at least, so that it need not grow with each batch if sizes creep up; if there is
        less memory than that, by what is needed.

        Raises:
            MemoryError: The machine, or /dev/shm, does not have them.
        """
        stride = self.geometry.slot_stride
        if size > stride:
            raise MemoryError(
                f"a batch takes more than {_bytes(size)}, and each of the ring's {self.geometry.payloads} slots may "
                f"grow to {_bytes(stride)}: use a smaller batch_size, or fewer slots (num_workers, prefetch_factor, "
                "spare_slots)"
            )
        have = ring.committed(payload)
        least, size = up(size, PAGE), min(up(max(size + SPARE_COMMIT, have + have // 4), PAGE), stride)
        if self._forbidden(size, have):
            size = least
            if why := self._forbidden(size, have):
                raise MemoryError(why)
        moved = ring.overflowed(payload)
        if not moved and self.memfd >= 0 and not self._fits(ring, payload, size):
            size = self._overflow(ring, payload, size, least, filled)
        else:
            try:
                size = _allocate(self.memfd if moved else self.fd, ring.slot_offset(payload), size, least)
            except OSError as error:
                if error.errno not in NO_PAGES:
                    raise
                if moved or self.memfd < 0:
                    raise MemoryError(self._no_room(self.geometry.batches + self.spare, least)) from None
                size = self._overflow(ring, payload, size, least, filled)
        ring.note_committed(payload, size)

    def _forbidden(self, size: int, have: int = 0) -> str:
        """Why a slot that has pages for `have` bytes may not have them for `size`; empty if it may.

        The budget is compared with all slots at this size.  So the first batch that is too large is refused, and not a
        later one, when by chance all slots have held one like it.
        """
        slots = self.geometry.batches + self.spare
        if self.budget is not None and slots * size > self.budget:
            return (
                f"the ring needs {slots} slots x {_bytes(size)} = {_bytes(slots * size)}, and max_ring_bytes allows "
                f"{_bytes(self.budget)}: raise it, use a smaller batch_size, or fewer slots (num_workers x "
                "prefetch_factor + spare_slots)"
            )
        return self._no_room(slots, size) if size - have > available_memory() else ""

    def _fits(self, ring: Ring, payload: int, size: int) -> bool:
        """Whether /dev/shm has room for all slots at this size, and a sixteenth of it left for others."""
        slots = self.geometry.batches + self.spare
        mount = os.statvfs(SHM_MOUNT)
        wanted = max(slots * size - ring.committed_in_all(), size - ring.committed(payload))
        return wanted <= mount.f_bavail * mount.f_frsize - mount.f_blocks * mount.f_frsize // 16

    def _overflow(self, ring: Ring, payload: int, size: int, least: int, filled: int) -> int:
        """Move a payload to the memfd; returns how many bytes of it have pages there."""
        try:
            size = _allocate(self.memfd, ring.slot_offset(payload), size, least)
        except OSError as error:
            if error.errno not in NO_PAGES:
                raise
            raise MemoryError(self._no_room(self.geometry.batches + self.spare, least)) from None
        ring.move_to_memfd(payload, filled)
        return size

    def _no_room(self, slots: int, size: int) -> str:
        machine = f"the machine, or this container, {_bytes(available_memory())}"
        elsewhere = ""
        if self.memory == "posix":
            elsewhere = "ring_memory='auto' or 'memfd', a larger /dev/shm (docker run --shm-size), "
        return (
            f"the ring needs {slots} slots x {_bytes(size)} = {_bytes(slots * size)} of shared memory, and "
            f"{SHM_MOUNT} has {_bytes(free_in_shm())} free, {machine}: use {elsewhere}"
            "a smaller batch_size, or fewer slots (num_workers x prefetch_factor + spare_slots)"
        )

    def close(self) -> None:
        """Close the descriptors.  Mappings live on, and so do batches that are lent."""
        for fd in (self.fd, self.memfd):
            if fd >= 0:
                os.close(fd)
        self.fd, self.memfd = -1, -1

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("fd", "memfd", "mapping")}
        state["fds"] = [reduction.DupFd(fd) for fd in (self.fd, self.memfd) if fd >= 0]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        follow(state["trainer"])  # the dataset is unpickled next, which may take long
        fds = [fd.detach() for fd in state.pop("fds")]
        self.__dict__.update(state)
        self.fd, self.memfd = fds[0], fds[1] if len(fds) > 1 else -1
        self.mapping = Mapping(self.fd, self.geometry.size)


def warn_overflow() -> None:
    """Say once that "auto" has moved payloads out of /dev/shm.  In the trainer: nobody may see a worker's warning."""
    _say_moved(f"{SHM_MOUNT} is too small for the ring's slots ({_bytes(free_in_shm())} free)")


_said = False


def _say_moved(why: str) -> None:
    global _said
    if not _said:
        _said = True
        warnings.warn(
            f"{why}; the ring's slots lie in a memfd instead, which is as fast. Give ring_memory='memfd' to have them "
            "there from the start.",
            stacklevel=2,
        )


def too_many_files() -> str:
    return (
        f"too many open files: this process may have {_limit(resource.RLIMIT_NOFILE, '{}')} (ulimit -n). "
        "A ring takes 3, or 4 where workers are spawned, and each worker 2 or 3 while it lives: raise the limit, or "
        "lower num_workers"
    )


def _limit(which: int, form: str = "{} bytes") -> str:
    soft = resource.getrlimit(which)[0]
    return "an unlimited number" if soft == resource.RLIM_INFINITY else form.format(soft)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
