# cython: language_level=3, boundscheck=False, wraparound=False
"""A read-only view of a ring from another process, such as `shmloader top`.  It refuses rings of other versions.
NOTE [ Figures ] in atomics.h.
"""

cimport cython
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from posix.mman cimport MAP_FAILED, MAP_SHARED, PROT_READ, mmap, munmap
from posix.unistd cimport close, pread, pwrite

import os
from typing import NamedTuple

from atomics cimport (
    RING_ANY, RING_COLLATES, RING_DOINGS, RING_FETCHES, RING_LINE, RING_MAGIC, RING_STARTS, RING_VERSION, RING_WAITS,
    ring_committed, ring_entry, ring_header, ring_load, ring_noted, ring_once, ring_once_32, ring_owner, ring_payload,
    ring_seq, ring_state, ring_worker,
)
from clock cimport now

DOINGS = {RING_STARTS: "starts", RING_WAITS: "waits", RING_FETCHES: "fetches", RING_COLLATES: "collates"}
STATES = ("void", "open", "claimed", "ready")
MOST = 1 << 20      # entries or payloads that a header may name; with more, it is not a ring

cdef extern from "<stdlib.h>":
    void *aligned_alloc(size_t alignment, size_t size)


class OtherVersion(ValueError):
    """The ring is of another version of shmloader."""


class Totals(NamedTuple):
    """The trainer's words in a ring.  Times are time.monotonic_ns()'s; counts grow from the ring's beginning on."""

    label: str              # the dataset's class
    now: int                # when this was read
    asked_at: int           # when the present next() was called; 0: it is not in next()
    waited_ns: int          # in next(), without the call that is under way
    user_waited_ns: int     # the user's, if a prefetch thread takes from the ring (device=) and waited_ns is its
    user_stepped_ns: int    # the user's, between calls of next(), in that case
    epoch: int
    taken: int
    samples: int
    bytes: int
    lent: int               # batches that are the user's now
    copied: int
    deaths: int


class LaneNow(NamedTuple):
    """A worker's words in a ring.  If it replaced a dead one, they include that one's counts."""

    worker: int
    pid: int                # 0: it has not started
    doing: str              # "starts", "waits" (for a task), "fetches" or "collates"
    since: int              # time.monotonic_ns()'s
    published: int          # sequences with a batch
    fetched_ns: int
    collated_ns: int


class EntryNow(NamedTuple):
    """A sequence in the ring."""

    sequence: int
    state: str              # "void", "open", "claimed" or "ready"
    owner: int              # the worker; -1: any worker
    epoch: int              # the ring's
    batch: int              # its number in that epoch
    payload: int


@cython.final
cdef class Onlooker:
    """Maps a ring's words, read-only, and copies them for each call.

    The file may be truncated by its owner, and reading beyond its end would be a bus error.  So the kernel copies them,
    by write(), which returns an error instead.  No descriptor of the ring stays open, because another onlooker would
    take it for one of the trainer's.

    Args:
        fd: a descriptor of the segment, open for reading, such as /proc/PID/fd/N of the trainer.  It may be closed
            after this.

    Attributes:
        trainer, started_at: its pid, and when it made the ring.

    Raises:
        ValueError: this is not a ring, or one of another version, or it is closed.  The methods raise it too, if the
            ring has been truncated.
        OSError: it cannot be mapped.

    Example:
        >>> fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        >>> ring = Onlooker(fd)
        >>> ring.totals().taken, [lane.doing for lane in ring.lanes()]
        (1200, ['fetches', 'waits'])
    """
    cdef void *at           # the words
    cdef size_t size
    cdef uint64_t whole     # bytes of the file, most of which have no pages
    cdef char *base         # the copy, and the offsets in it
    cdef ring_header *header
    cdef ring_worker *worker
    cdef ring_entry *entry
    cdef ring_payload *payload
    cdef readonly int workers, entries, payloads, batches
    cdef readonly uint64_t trainer, started_at

    def __cinit__(self, int fd):
        cdef uint32_t workers, entries, payloads
        self.at = MAP_FAILED
        self.map(fd, sizeof(ring_header))
        self.read(self.header, sizeof(ring_header))
        self.check()
        workers, entries = ring_once_32(&self.header.workers), ring_once_32(&self.header.entries)
        payloads = ring_once_32(&self.header.payloads)
        if not 0 < workers <= RING_ANY or not 0 < entries <= MOST or not 0 < payloads <= MOST:
            raise ValueError(f"this is no ring: it names {workers} workers, {entries} entries, {payloads} payloads")
        self.workers, self.entries, self.payloads = workers, entries, payloads
        self.batches = ring_once_32(&self.header.batches)
        self.trainer, self.started_at = ring_once(&self.header.trainer), ring_once(&self.header.started_at)
        self.map(fd, sizeof(ring_header) + self.workers * sizeof(ring_worker) + self.entries * sizeof(ring_entry)
                 + self.payloads * sizeof(ring_payload))

    cdef int map(self, int fd, size_t size) except -1:
        """Map this many bytes of words instead of the former ones, and allocate a copy of them."""
        cdef Py_ssize_t all = os.fstat(fd).st_size
        self.whole = all
        if <Py_ssize_t>size > all:
            raise ValueError(f"this is no ring: its words take {size} bytes, and it has {all}")
        self.unmap()
        self.base = <char *>aligned_alloc(RING_LINE, size)
        if self.base == NULL:
            raise MemoryError()
        self.at, self.size = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0), size
        if self.at == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.header = <ring_header *>self.base
        self.worker = <ring_worker *>(self.base + sizeof(ring_header))
        self.entry = <ring_entry *>(self.worker + self.workers)
        self.payload = <ring_payload *>(self.entry + self.entries)
        return 0

    cdef int read(self, void *to, size_t size) except -1:
        """Copy the words again."""
        cdef size_t offset = <char *>to - self.base
        cdef int through
        try:
            through = os.memfd_create("shmloader_look", os.MFD_CLOEXEC)
        except OSError as error:  # too many open files, or a sandbox refuses it
            raise ValueError(f"the ring cannot be read: memfd_create: {error}") from None
        cdef bint whole = (pwrite(through, <char *>self.at + offset, size, 0) == <ssize_t>size
                           and pread(through, to, size, 0) == <ssize_t>size)
        close(through)
        if not whole:
            raise ValueError("this is no ring: it has been cut short")
        return 0

    cdef void unmap(self) noexcept:
        free(self.base)
        self.base = NULL
        if self.at != MAP_FAILED:
            munmap(self.at, self.size)
            self.at = MAP_FAILED

    def __dealloc__(self):
        self.unmap()

    cdef int check(self) except -1:
        cdef uint64_t magic = ring_once(&self.header.magic)
        cdef uint32_t version = ring_once_32(&self.header.version)
        if magic == 0 and version == 0:
            raise ValueError("this is no ring, or it is closed")
        if magic != RING_MAGIC:
            raise ValueError(f"this is no ring: it begins with {magic:#x}")
        if version != RING_VERSION:
            raise OtherVersion(f"this ring is of version {version}, and this shmloader reads version {RING_VERSION}. "
                               "Use the one that the trainer runs.")
        return 0

    @property
    def closed(self) -> bool:
        """Whether its trainer has closed it, so that its words do not change any more."""
        try:
            self.read(self.header, sizeof(ring_header))
        except ValueError:
            return True
        return ring_once(&self.header.magic) != RING_MAGIC

    def totals(self) -> Totals:
        """The trainer's words now."""
        cdef ring_header *header = self.header
        self.read(header, sizeof(ring_header))
        label = (<bytes>header.label[:sizeof(header.label)]).partition(b"\0")[0].decode(errors="replace")
        return Totals(
            label, now(), ring_noted(&header.asked_at), ring_noted(&header.waited_ns),
            ring_noted(&header.user_waited_ns), ring_noted(&header.user_stepped_ns), ring_noted(&header.epoch),
            ring_noted(&header.taken), ring_noted(&header.samples), ring_noted(&header.bytes),
            ring_noted(&header.lent), ring_noted(&header.copied), ring_noted(&header.deaths),
        )

    def lanes(self) -> list[LaneNow]:
        """Each worker's words now."""
        cdef int k
        cdef ring_worker *lane
        cdef uint64_t doing
        found = []
        self.read(self.worker, self.workers * sizeof(ring_worker))
        for k in range(self.workers):
            lane = &self.worker[k]
            doing = ring_noted(&lane.doing)
            found.append(LaneNow(
                k, ring_noted(&lane.pid), DOINGS[doing % RING_DOINGS], doing // RING_DOINGS * RING_DOINGS,
                ring_noted(&lane.filled), ring_noted(&lane.fetched_ns), ring_noted(&lane.collated_ns),
            ))
        return found

    def in_flight(self) -> list[EntryNow]:
        """The sequences that are opened and not taken, the lowest ones first.

        A taken sequence stays "ready" in its entry until the entry is opened again.  So this returns the batches that
        were opened last, as many as are not taken.  Out of order, it may return one in place of another.
        """
        cdef int k
        cdef ring_entry *entry
        cdef uint64_t word, under_way
        found = []
        self.read(self.base, <char *>self.payload - self.base)
        for k in range(self.entries):
            entry = &self.entry[k]
            word = ring_load(entry)
            if ring_state(word) >= <uint32_t>len(STATES) or not ring_state(word):
                continue
            found.append(EntryNow(
                ring_seq(word), STATES[ring_state(word)], -1 if ring_owner(word) == RING_ANY else ring_owner(word),
                ring_once_32(&entry.ask.epoch), ring_once_32(&entry.ask.batch), ring_once_32(&entry.ask.payload),
            ))
        under_way = ring_noted(&self.header.opened) - ring_noted(&self.header.taken)
        batches = {(each.epoch, each.batch): 0 for each in sorted(found, key=lambda each: each.sequence)}
        taken = set(list(batches)[:max(0, len(batches) - max(0, <int64_t>under_way))])
        return sorted([each for each in found if (each.epoch, each.batch) not in taken or each.state != "ready"])

    def slot_bytes(self) -> list[int]:
        """How many bytes of each slot have pages."""
        cdef int k
        self.read(self.payload, self.payloads * sizeof(ring_payload))
        return [min(ring_committed(&self.payload[k]), self.whole) for k in range(self.payloads)]
