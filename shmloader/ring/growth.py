"""How the ring's memory grows for a larger batch: by how much, and when a slot moves out of /dev/shm.
It refuses what exceeds `max_ring_bytes`, or the machine's memory.

The kernel is asked for pages before anything is written to them, because a write to missing memory is a SIGBUS.  If
there are none, commit() raises a MemoryError in the worker, which sends it in place of the batch (`_fill` in
worker/loop.py).

The layout of the ring's memory: how many workers it allows, how many slots, and where entries, areas and slots lie.

Whether there is memory for them is in growth.py.  Where each tensor of a batch lies in its slot is written by note() in
batch_writer.pyx; allocate() in worker.pyx aligns it.  The head of batch_writer.pyx says what else a new field needs:
both readers of it, and the versions of the ring and of far workers.  The words of an entry and of a slot are in
atomics.h.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
from dataclasses import dataclass
from typing import Literal, cast, get_args

from shmloader.core.ring import (
    ANY,
    ENTRY_BYTES,
    HEADER_BYTES,
    PAYLOAD_BYTES,
    WORKER_BYTES,
    Mapping,
    Ring,
    give_pages_back,
)
from shmloader.system.anonymous_files import SHM_MOUNT, allocate
from shmloader.system.limits import available_memory
from shmloader.system.user_line import warn_once

PAGE = mmap.PAGESIZE
MiB = 1 << 20

AREA_RESERVED = 64 * MiB  # address space of one entry's area: 8 million indices
AREA_AT_LEAST = 256 * 1024  # where addresses are limited, and if a quarter of those reserved is enough for that
MEMORY = 16 * 1024  # the states of three generators are 12 KiB
FIRST_COMMIT = 16 * 1024  # pages of a payload before its first batch: enough for an exception and its traceback
SPARE_COMMIT = 64 * 1024  # committed beyond the need, so that a batch's description rarely needs more
MOST_WORKERS = ANY  # the next index means "any worker"


def up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@dataclass(frozen=True)
class Geometry:
    """The offsets in the segment, in bytes from its start: control words, memories, areas, cells, payload slots, and
    the tails of slots, which are not mapped at first: NOTE [ Rooms ] in ring.pxd."""

    workers: int
    entries: int
    batches: int  # how many may be under way: as many as entries, or fewer if they are cut into chunks
    payloads: int
    memory_stride: int
    area_stride: int
    slot_stride: int
    cells: int = 0  # for the states of streams: cells_for()
    cell_stride: int = 0
    tail_stride: int = 0  # 0: no slot outgrows its room

    @property
    def memory_at(self) -> int:
        words = HEADER_BYTES + self.workers * WORKER_BYTES + self.entries * ENTRY_BYTES + self.payloads * PAYLOAD_BYTES
        return up(words, PAGE)

    @property
    def area_at(self) -> int:
        return self.memory_at + 2 * self.workers * self.memory_stride

    @property
    def cell_at(self) -> int:
        return self.area_at + self.entries * self.area_stride

    @property
    def slot_at(self) -> int:
        return self.cell_at + self.cells * self.cell_stride

    @property
    def tail_at(self) -> int:
        return self.slot_at + self.payloads * self.slot_stride

    @property
    def mapped(self) -> int:
        """How many bytes each process maps at first."""
        return self.tail_at

    @property
    def size(self) -> int:
        return self.tail_at + self.payloads * self.tail_stride

    @property
    def slot_most(self) -> int:
        """How many bytes a slot may have."""
        return self.slot_stride + self.tail_stride

    @property
    def area_commit(self) -> int:
        """Bytes of each entry's area that have pages from the start."""
        return PAGE

    def area_offset(self, entry: int) -> int:
        return self.area_at + entry * self.area_stride


def cells_for(entries: int, workers: int) -> int:
    """How many cells a ring of streams has, so that every opened sequence finds one: NOTE [ Cells ]."""
    return entries + workers + 1


def reserve(
    workers: int, entries: int, batches: int, spare: int, remember: bool, streams: bool, reserved: int, tail: int = 0
) -> Geometry:
    """Lay a ring out over about `reserved` bytes of addresses, with tails of `tail` bytes.

    It has one payload slot for each batch under way, `spare` more to lend, and one more for each worker, which replaces
    a slot that the worker keeps.

    Raises:
        ValueError: There are more workers than the ring has numbers for.
    """
    if workers > MOST_WORKERS:
        raise ValueError(f"num_workers={workers} is too many. A ring has at most {MOST_WORKERS} workers. Use fewer.")
    payloads = batches + spare + workers
    least = min(AREA_AT_LEAST, reserved // 4 // entries)
    task = min(AREA_RESERVED, up(max(reserved // 16 // entries, least), PAGE))
    slot = max(up(FIRST_COMMIT + SPARE_COMMIT, PAGE), reserved * 15 // 16 // payloads // PAGE * PAGE)
    cells = cells_for(entries, workers) if streams else 0
    memory = MEMORY if remember else 0
    return Geometry(workers, entries, batches, payloads, memory, task, slot, cells, task if streams else 0, tail)


RingMemory = Literal["auto", "posix", "memfd"]
WHERE = "SHMLOADER_RING_MEMORY"

NO_PAGES = (errno.ENOSPC, errno.ENOMEM)
PIECE = 8 * MiB  # takes the kernel about 2 ms; a profiler's timer comes every 10 ms, or every 1 ms


def ring_memory() -> RingMemory:
    """Where a ring shall lie, by the environment: `Segment` says what the words mean.

    Raises:
        ValueError: It is none of these words.
    """
    found = os.environ.get(WHERE, "auto")
    if found not in get_args(RingMemory):
        raise ValueError(
            f"{WHERE} should be auto, posix or memfd, but got {WHERE}={found!r}. Unset it: auto is the default."
        )
    return cast("RingMemory", found)


def free_in_shm() -> int:
    """Bytes free in /dev/shm; 0 if there is none."""
    try:
        mount = os.statvfs(SHM_MOUNT)
    except OSError:
        return 0
    return mount.f_bavail * mount.f_frsize


@dataclass(frozen=True)
class Place:
    """Where bytes lie in a segment: the first ones at one offset, and the rest at another, as a slot's tail does."""

    at: int
    first: int = 1 << 62
    tail: int = 0

    def piece(self, done: int, size: int) -> tuple[int, int]:
        """The offset of what follows the first `done` bytes, and how many of `size` more lie there in one piece."""
        if done < self.first:
            return self.at + done, min(size, self.first - done)
        return self.tail + done - self.first, size


def find_pages(fd: int, place: Place, size: int, found: int = 0) -> int:
    """Allocate pages for `size` bytes at this place; returns for how many bytes there are pages, perhaps fewer.

    The first `found` bytes have theirs.

    The kernel is asked for a PIECE at a time.  Before 2024, tmpfs gives up when a signal comes, and frees the pages
    that it has found; Python then asks again.  A profiler's timer would interrupt a large range each time, for ever.

    Raises:
        OSError: The kernel refuses for another reason than a lack of pages.
    """
    while found < size:
        at, piece = place.piece(found, min(PIECE, size - found))
        try:
            allocate(fd, at, piece)
        except OSError as error:
            if error.errno not in NO_PAGES:
                raise
            return found
        found += piece
    return found


def _give_back(fd: int, place: Place, keep: int, found: int) -> None:
    """Give back the pages of `found` bytes at this place, but for the first `keep`."""
    while keep < found:
        at, piece = place.piece(keep, found - keep)
        with contextlib.suppress(OSError):  # a sandbox refuses it, and the pages stay until the ring ends
            give_pages_back(fd, at, piece)
        keep += piece


def _allocate(fd: int, place: Place, size: int, least: int, have: int | None = 0) -> int:
    """Allocate pages for `size` bytes at this place, or for `least` if there are no more; returns for how many.

    Args:
        fd, place: Where.
        size, least: See above; `size` is `least` or more.
        have: How many bytes have pages already, which stay if this is refused.  None: not known, so all stay.

    Raises:
        OSError: ENOSPC: there are not even pages for `least`.
    """
    found = find_pages(fd, place, size)
    if found < least:
        found = find_pages(fd, place, least, found)
    if found == size:
        return size
    if have is not None:
        _give_back(fd, place, max(have, least if found >= least else 0), found)
    if found < least:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return least


class Growth:
    """The parts of a segment that grow: areas with their indices and descriptions, and slots with their batches."""

    fd: int
    memfd: int
    memory: RingMemory
    no_memfd: str
    budget: int | None
    spare: int
    geometry: Geometry
    mapping: Mapping

    def commit_task(self, entry: int, size: int) -> int:
        """Allocate pages for a task of `size` bytes in an entry's area; returns for how many.  For the trainer."""
        if size > self.geometry.area_stride:
            raise MemoryError(
                f"a batch's indices take {in_units(size)}. {in_units(self.geometry.area_stride)} are reserved for "
                "them. Use a smaller batch_size, or indices that pickle to less."
            )
        return self._commit_area(entry, size)

    def commit_answer(self, entry: int, size: int) -> int:
        """Allocate pages for `size` bytes of an entry's area; returns for how many.  For the worker that holds it."""
        if size > self.geometry.area_stride:
            raise MemoryError(
                f"the indices of a batch and the description of its contents take {in_units(size)}. "
                f"{in_units(self.geometry.area_stride)} are reserved for them. Use a smaller batch_size, or batches of "
                "fewer tensors."
            )
        return self._commit_area(entry, size)

    def commit_state(self, cell: int, size: int) -> int:
        """Allocate pages for `size` bytes of a cell; returns for how many.  For the worker that may write there."""
        geometry = self.geometry
        if size > geometry.cell_stride:
            raise MemoryError(
                f"the state_dict() of a stream takes {in_units(size)}. {in_units(geometry.cell_stride)} are reserved "
                "for it. Have it return less."
            )
        least, size = up(size, PAGE), min(up(size + size // 4, PAGE), geometry.cell_stride)
        try:
            return _allocate(self.fd, Place(geometry.cell_at + cell * geometry.cell_stride), size, least, have=None)
        except OSError as error:
            raise MemoryError(self.no_room(geometry.cells, least)) from error

    def _commit_area(self, entry: int, size: int) -> int:
        least, size = up(size, PAGE), min(up(size + size // 4, PAGE), self.geometry.area_stride)
        try:
            # A task may lie in there, which only the other side knows about.
            return _allocate(self.fd, Place(self.geometry.area_offset(entry)), size, least, have=None)
        except OSError as error:
            raise MemoryError(self.no_room(self.geometry.entries, least)) from error

    def commit(self, ring: Ring, payload: int, size: int, filled: int) -> None:
        """Allocate pages for the first `size` bytes of a payload, of which `filled` hold data.  For its holder.

        A payload grows by at least a quarter, so that it need not grow with each batch if sizes creep up; or by what is
        needed, if there is less memory than that.

        Raises:
            MemoryError: The machine, or /dev/shm, does not have them.
        """
        most = self.geometry.slot_most
        if size > most:
            raise MemoryError(
                f"a batch takes more than {in_units(size)}. Each of the ring's {self.geometry.payloads} slots may grow "
                f"to {in_units(most)}. Use a smaller batch_size, or fewer slots (num_workers, prefetch_factor, "
                "spare_slots)."
            )
        have = ring.committed(payload)
        least, size = up(size, PAGE), min(up(max(size + SPARE_COMMIT, have + have // 4), PAGE), most)
        if self.forbidden(size, have):
            size = least
            if why := self.forbidden(size, have):
                raise MemoryError(why)
        moved = ring.overflowed(payload)
        outgrows = size > self.geometry.slot_stride  # NOTE [ Rooms ], 5, in ring.pxd
        fits = moved or self.memfd < 0 or self._fits(ring, payload, size)
        if not moved and self.memfd >= 0 and (outgrows or not fits):
            size = self._overflow(ring, payload, size, least, filled, outgrown=fits)
        else:
            try:
                size = _allocate(self.memfd if moved else self.fd, self._place(payload), size, least, have)
            except OSError as error:
                if error.errno not in NO_PAGES:
                    raise
                if moved or self.memfd < 0:
                    raise MemoryError(self.no_room(self.geometry.batches + self.spare, least)) from None
                size = self._overflow(ring, payload, size, least, filled)
        ring.note_committed(payload, size)

    def _place(self, payload: int) -> Place:
        geometry = self.geometry
        at = geometry.slot_at + payload * geometry.slot_stride
        return Place(at, geometry.slot_stride, geometry.tail_at + payload * geometry.tail_stride)

    def rooms(self, size: int, have: int, pages: int) -> list[int]:
        """How many bytes of addresses to give a slot that has them for `have` bytes, and needs them for `size`.

        Args:
            size, have: See above.
            pages: For how many bytes there are pages, `size` or more.

        Returns:
            The numbers to try, one after the other: NOTE [ Rooms ], 2, in ring.pxd.
        """
        most = self.geometry.slot_most
        is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        again = 2 * have if have > self.geometry.slot_stride else 0
        return [*([] if is_limited else [most]), min(most, max(pages, again)), up(size, PAGE)]

    def no_addresses(self, size: int) -> str:
        """The text for a process that may not map so many bytes of a slot."""
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        may = "more" if limit == resource.RLIM_INFINITY else f"more than {in_units(limit)} of addresses (ulimit -v)"
        return (
            f"a batch takes {in_units(size)}, and process {os.getpid()} may not map {may}. Raise the limit, or use a "
            "smaller batch_size, or fewer slots (num_workers, prefetch_factor, spare_slots)."
        )

    def forbidden(self, size: int, have: int = 0) -> str:
        """Why a slot that has pages for `have` bytes may not have them for `size`; empty if it may.

        The budget is compared with all slots at this size.  So the first batch that is too large is refused, and not a
        later one, when all slots happen to have held one like it.
        """
        slots = self.geometry.batches + self.spare
        if self.budget is not None and slots * size > self.budget:
            return (
                f"the ring needs {slots} slots x {in_units(size)} = {in_units(slots * size)}, and max_ring_bytes "
                f"allows {in_units(self.budget)}. Raise it, or use a smaller batch_size or fewer slots (num_workers x "
                "prefetch_factor + spare_slots)."
            )
        return self.no_room(slots, size) if size - have > available_memory() else ""

    def _fits(self, ring: Ring, payload: int, size: int) -> bool:
        """Whether /dev/shm has room for all slots at this size, with a sixteenth of it left free."""
        slots = self.geometry.batches + self.spare
        mount = os.statvfs(SHM_MOUNT)
        wanted = max(slots * size - ring.committed_in_all(), size - ring.committed(payload))
        return wanted <= mount.f_bavail * mount.f_frsize - mount.f_blocks * mount.f_frsize // 16

    def _overflow(self, ring: Ring, payload: int, size: int, least: int, filled: int, outgrown: bool = False) -> int:
        """Move a payload to the memfd; returns how many bytes of it have pages there."""
        try:
            size = _allocate(self.memfd, self._place(payload), size, least)
        except OSError as error:
            if error.errno not in NO_PAGES:
                raise
            raise MemoryError(self.no_room(self.geometry.batches + self.spare, least)) from None
        ring.move_to_memfd(payload, filled, outgrown)
        return size

    def no_room(self, slots: int, size: int) -> str:
        machine = f"the machine or this container has {in_units(available_memory())}"
        elsewhere = ""
        if self.no_memfd:
            elsewhere = f"a larger /dev/shm (docker run --shm-size), because {self.no_memfd}. Or use "
        elif self.memory == "posix":
            elsewhere = f"{WHERE}=auto or memfd, or a larger /dev/shm (docker run --shm-size), or "
        return (
            f"the ring needs {slots} slots x {in_units(size)} = {in_units(slots * size)} of shared memory. "
            f"{SHM_MOUNT} has {in_units(free_in_shm())} free, and {machine}. Use {elsewhere}"
            "a smaller batch_size, or fewer slots (num_workers x prefetch_factor + spare_slots)."
        )


def warn_overflow() -> None:
    """Warn once that "auto" has moved payloads out of /dev/shm.  In the trainer, because a worker's may not be seen."""
    say_moved(f"{SHM_MOUNT} is too small for the ring's slots ({in_units(free_in_shm())} free)")


def say_moved(why: str) -> None:
    warn_once(
        f"{why}. The ring's slots lie in a memfd instead, which is as fast. Set {WHERE}=memfd to put them there from "
        "the start.",
        UserWarning,
        "slots lie in a memfd",
    )


def in_units(number: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
