# cython: language_level=3, boundscheck=False, wraparound=False
"""The part of the ring that both sides use: the mapped segment, its words and slots, and a slot's move out of /dev/shm.
It has the errors for a closed iterator and for overwritten memory.  The contract is in ring.pxd.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_FromLongLong
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.errno cimport ENOMEM, errno
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MAP_FIXED, MAP_SHARED, PROT_READ, PROT_WRITE, madvise, mmap, munmap
from posix.types cimport off_t
from posix.unistd cimport getpid

from atomics cimport (
    AFTER_OVERFLOW, RING_ANY, RING_STEP, ring_committed, ring_entry, ring_header, ring_load,
    ring_note_committed, ring_once_32, ring_owner, ring_payload, ring_seq, ring_state, ring_worker,
)

import numpy

cdef object frombuffer = numpy.frombuffer, int64 = numpy.int64

cdef extern from "<sys/mman.h>":
    enum: MAP_NORESERVE, MADV_REMOVE, MADV_DONTDUMP

cdef extern from "<linux/falloc.h>":    # fcntl.h has them too, but only with _GNU_SOURCE
    enum: FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE

cdef extern from "<fcntl.h>":
    int fallocate(int fd, int mode, off_t at, off_t bytes)

cdef uint64_t NOWHERE = <uint64_t>-1    # no sequence

ANY = RING_ANY      # for TrainerSide.open(), instead of a worker

HEADER_BYTES = sizeof(ring_header)
WORKER_BYTES = sizeof(ring_worker)
ENTRY_BYTES = sizeof(ring_entry)
PAYLOAD_BYTES = sizeof(ring_payload)


cpdef object overwritten(what, value, limit):
    """The exception for a word that the other side cannot have written: its name, its value, and the allowed values."""
    may_be = f"at most {limit}" if type(limit) is int else limit
    return RuntimeError(f"the ring's memory was overwritten: {what} is {value}, and may be {may_be}. Some code writes "
                        "to memory that is not its own: in a worker process, a C extension or ctypes")


cdef int check_index(str what, int index, int count) except -1:
    if not 0 <= index < count:
        raise IndexError(f"there is no {what} {index}: this ring's are 0 to {count - 1}")
    return 0


cdef bint lowest(ring_entry *entries, int count, uint32_t state, uint32_t owner, const uint8_t *among,
                 uint64_t *sequence) noexcept nogil:
    """Find the lowest sequence in this state, of this owner (RING_ANY: of any), in these entries (NULL: all).

    A pass may find a sequence that was written after the pass had gone by the entry of an earlier one of the same
    writer.  The next pass sees the earlier one.  So passes are repeated until one finds nothing lower.  Then the
    sequences that one worker published, or that were opened for it, are found in their order.
    """
    cdef uint64_t word, before, found = NOWHERE
    cdef int k
    while True:
        before = found
        for k in range(count):
            if among != NULL and not among[k]:
                continue
            word = ring_load(&entries[k])
            if (ring_state(word) == state and ring_seq(word) < found
                    and (owner == RING_ANY or ring_owner(word) == owner)
                    and ring_seq(word) % count == <uint64_t>k):     # otherwise the word was overwritten
                found = ring_seq(word)
        if found == before:
            break
    if found == NOWHERE:
        return False
    sequence[0] = found
    return True


def give_pages_back(int fd, off_t at, off_t bytes) -> None:
    """Give the pages of this part of a file in memory back to the machine.  What was written there is lost.

    Raises:
        OSError: the kernel refuses.
    """
    if fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, bytes):
        PyErr_SetFromErrno(OSError)


class RingClosed(RuntimeError):
    """A call that needs an open ring."""


cdef class Mapping:
    """The segment's addresses in this process.

    Args:
        fd: the segment; it may be closed afterwards.
        size: bytes to map, from its start.  Until they are committed, they take only address space.

    Raises:
        OSError: ENOMEM if the process's address space is limited to less (RLIMIT_AS).
    """

    def __cinit__(self, int fd, Py_ssize_t size):
        cdef void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
        if at == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base, self.size, self.whole, self.pid = <char *>at, size, True, getpid()
        madvise(at, size, MADV_DONTDUMP)    # a core dump of the trainer need not hold the ring

    def __dealloc__(self):
        cdef int k
        if self.rooms != NULL:
            for k in range(self.slots):
                self.unmap_rooms(k)
            free(self.rooms)
        if self.base != NULL and self.whole:
            munmap(self.base, self.size)

    cdef int check_open(self) except -1:
        if self.closed:
            raise RingClosed("this iterator has been shut down. Iterate over the DataLoader again.")
        return 0

    cdef void give_back(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil:
        """Give these pages back, even if forked processes still map them.  In a forked process it does nothing."""
        if self.pid == getpid():
            madvise(self.base + at, bytes, MADV_REMOVE)

    cdef void unmap(self, Py_ssize_t at, Py_ssize_t bytes) noexcept nogil:
        munmap(self.base + at, bytes)

    # ------------------------------------------------------------------------------ rooms of slots: NOTE [ Rooms ]

    cdef int lay_out(self, int slots, Py_ssize_t slot_at, Py_ssize_t slot_stride) except -1:
        """Give each slot its first room.  A second call, by the other side in the same process, changes nothing."""
        if self.rooms != NULL:
            return 0
        self.slots, self.slot_at, self.slot_stride = slots, slot_at, slot_stride
        self.rooms = <ring_room **>calloc(slots, sizeof(ring_room *))
        if self.rooms == NULL:
            raise MemoryError()
        return 0

    cdef char *slot(self, int slot) noexcept nogil:
        if self.rooms[slot] != NULL:
            return self.rooms[slot].at
        return self.base + self.slot_at + slot * self.slot_stride

    cdef uint64_t room(self, int slot) noexcept nogil:
        return self.slot_stride if self.rooms[slot] == NULL else self.rooms[slot].bytes

    cdef bint widen(self, int slot, uint64_t bytes, int fd, off_t tail) except -1:
        cdef ring_room *room = <ring_room *>malloc(sizeof(ring_room))
        cdef off_t first = self.slot_at + slot * self.slot_stride
        cdef int how = MAP_SHARED | MAP_NORESERVE, error
        cdef void *at
        if room == NULL:
            raise MemoryError()
        # with the tail in its place, and then the first part in front of it
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how, fd, tail - self.slot_stride)
        if at == MAP_FAILED or MAP_FAILED == mmap(at, self.slot_stride, PROT_READ | PROT_WRITE, how | MAP_FIXED, fd,
                                                  first):
            error = errno
            if at != MAP_FAILED:
                munmap(at, bytes)
            free(room)
            if error == ENOMEM:
                return False
            raise OSError(error, "a slot could not be mapped anew")
        madvise(at, bytes, MADV_DONTDUMP)
        room.at, room.bytes, room.before = <char *>at, bytes, self.rooms[slot]
        self.rooms[slot] = room
        return True

    cdef void free_pages(self, int slot, Py_ssize_t first, Py_ssize_t end) noexcept nogil:
        """Give back the pages of these bytes of a slot.  It has a room for them, or they have no pages."""
        cdef Py_ssize_t room = self.room(slot)
        if first < min(end, room) and self.pid == getpid():
            madvise(self.slot(slot) + first, min(end, room) - first, MADV_REMOVE)

    cdef void unmap_slot(self, int slot) noexcept nogil:
        munmap(self.base + self.slot_at + slot * self.slot_stride, self.slot_stride)
        self.unmap_rooms(slot)

    cdef void unmap_rooms(self, int slot) noexcept nogil:
        cdef ring_room *room = self.rooms[slot]
        cdef ring_room *before
        self.rooms[slot] = NULL
        while room != NULL:
            before = room.before
            munmap(room.at, room.bytes)
            free(room)
            room = before


cdef class Ring:
    """One side's view of the ring.  Use TrainerSide or WorkerSide.

    Args:
        segment: the memory (segment.Segment).  It has the mapping, the geometry, and the overflow segment's descriptor,
            which must stay open while payloads may overflow, and it commits pages.
        spin: whether a waiting side may pause on its core before it sleeps.  If not, it yields the core (spin.h).
    """

    def __cinit__(self, segment, bint spin, *_):
        cdef Mapping mapping = segment.mapping
        cdef object geometry = segment.geometry
        self.segment, self.mapping, self.memfd = segment, mapping, segment.memfd
        self.workers, self.entries, self.payloads = geometry.workers, geometry.entries, geometry.payloads
        self.batches = geometry.batches
        self.memory_at, self.memory_stride = geometry.memory_at, geometry.memory_stride
        self.area_at, self.area_stride = geometry.area_at, geometry.area_stride
        self.slot_at, self.slot_stride = geometry.slot_at, geometry.slot_stride
        self.cells, self.cell_at, self.cell_stride = geometry.cells, geometry.cell_at, geometry.cell_stride
        self.tail_at, self.tail_stride = geometry.tail_at, geometry.tail_stride
        self.slot_most = self.slot_stride + self.tail_stride
        mapping.lay_out(self.payloads, self.slot_at, self.slot_stride)
        self.spin.yields = not spin
        self.header = <ring_header *>mapping.base
        self.worker = <ring_worker *>(mapping.base + sizeof(ring_header))
        self.entry = <ring_entry *>(self.worker + self.workers)
        self.payload = <ring_payload *>(self.entry + self.entries)
        self.remapped = <uint8_t *>calloc(self.payloads, 1)
        if self.remapped == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.remapped)

    cdef char *slot(self, int payload) noexcept nogil:
        return self.mapping.slot(payload)

    cdef char *cell(self, int cell) noexcept nogil:
        return self.mapping.base + self.cell_at + cell * self.cell_stride

    cdef int follow(self, int payload) except -1:
        """Map a payload from the memfd, if it has moved there since this process last looked."""
        cdef uint32_t moved = ring_once_32(&self.payload[payload].overflowed)
        if not moved or self.remapped[payload]:
            return 0
        if self.memfd < 0:
            raise overwritten("a payload's mark that it has moved to the memfd", moved, 0)
        cdef Py_ssize_t offset = self.slot_at + payload * self.slot_stride
        cdef char *at = self.mapping.base + offset
        if mmap(at, self.slot_stride, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                self.memfd, offset) == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        madvise(at, self.slot_stride, MADV_DONTDUMP)
        self.remapped[payload] = True
        return 0

    cdef int reach(self, int payload, uint64_t bytes) except -1:
        """Have addresses for the first `bytes` of a payload, which have pages.

        Raises:
            MemoryError: the process may not map so much (RLIMIT_AS).
        """
        cdef uint64_t room = self.mapping.room(payload)
        cdef int fd
        if bytes <= room:
            return 0
        fd = self.memfd if ring_once_32(&self.payload[payload].overflowed) else self.segment.fd
        for size in self.segment.rooms(bytes, room, self.pages_of(payload)):
            if self.mapping.widen(payload, size, fd, self.tail_at + payload * self.tail_stride):
                return 0
        raise MemoryError(self.segment.no_addresses(bytes))

    cdef uint64_t pages_of(self, int payload) noexcept nogil:
        """How many bytes of this payload have pages, according to its word, but at most its size."""
        return min(ring_committed(&self.payload[payload]), <uint64_t>self.slot_most)

    def committed(self, int payload) -> int:
        """How many bytes of this payload have pages.  Exact for its holder, an estimate for others."""
        self.mapping.check_open()
        check_index("payload", payload, self.payloads)
        return self.pages_of(payload)

    def committed_in_all(self) -> int:
        """How many bytes of all payloads have pages: an estimate, because workers may be growing theirs."""
        cdef int k
        self.mapping.check_open()
        return sum([self.pages_of(k) for k in range(self.payloads)])

    def note_committed(self, int payload, Py_ssize_t bytes) -> None:
        """Record that the first `bytes` of this payload have pages now.  Only its holder may call this."""
        self.mapping.check_open()
        check_index("payload", payload, self.payloads)
        ring_note_committed(&self.payload[payload], bytes)

    def overflowed(self, int payload) -> bool:
        """Whether this payload's pages are in the memfd."""
        self.mapping.check_open()
        check_index("payload", payload, self.payloads)
        return ring_once_32(&self.payload[payload].overflowed) != 0

    def move_to_memfd(self, int payload, Py_ssize_t keep, bint outgrown=False) -> None:
        """Move this payload, with its first `keep` bytes, into the memfd, which has pages for it.

        Only its holder may call this.  Addresses do not change, so tensors over the payload stay valid.  Its pages in
        /dev/shm are given back.

        Args:
            outgrown: whether it moves because of NOTE [ Rooms ], 5, and not for lack of room in /dev/shm.
        """
        cdef char *old
        cdef void *new
        cdef Py_ssize_t offset = self.slot_at + payload * self.slot_stride
        self.mapping.check_open()
        check_index("payload", payload, self.payloads)
        old = self.mapping.base + offset    # its first room, which it has not outgrown: NOTE [ Rooms ], 5
        if keep:
            new = mmap(NULL, keep, PROT_READ | PROT_WRITE, MAP_SHARED, self.memfd, offset)
            if new == MAP_FAILED:
                PyErr_SetFromErrno(OSError)
            with nogil:
                memcpy(new, old, keep)
            munmap(new, keep)
        self.payload[payload].overflowed = 2 if outgrown else 1     # first, so that the payload has pages if this process dies here
        RING_STEP(AFTER_OVERFLOW)
        madvise(old, self.slot_stride, MADV_REMOVE)
        self.follow(payload)

    cdef char *area(self, uint64_t sequence) noexcept nogil:
        return self.mapping.base + self.area_at + (sequence % self.entries) * self.area_stride

    cdef int measure(self, uint64_t sequence, uint32_t *kind, uint64_t *size) except -1:
        """The kind and the size of a sequence's task: in indices, or in bytes if it is pickled."""
        cdef ring_entry *entry = &self.entry[sequence % self.entries]
        cdef uint64_t most
        kind[0], size[0] = ring_once_32(&entry.ask.task_kind), ring_once_32(&entry.ask.task_size)
        most = self.area_stride if kind[0] == PICKLED else self.area_stride // 8
        if kind[0] > NUMPY_INDICES:
            raise overwritten("a task's kind", kind[0], f"{INDEX} to {NUMPY_INDICES}")
        if size[0] > most:
            raise overwritten("a task's size", size[0], most)
        return 0

    cdef object read_task(self, uint64_t sequence, uint32_t kind, uint64_t size):
        """The task of a sequence, after measure()."""
        cdef char *area = self.area(sequence)
        cdef int64_t *indices = <int64_t *>area
        cdef Py_ssize_t k, n = size
        cdef object index
        if kind == INDEX:
            return PyLong_FromLongLong(indices[0])
        if kind == PICKLED:
            return PyBytes_FromStringAndSize(area, n)
        if kind == NUMPY_INDEX:
            return int64(indices[0])
        if kind == NUMPY_INDICES:
            return list(frombuffer(PyBytes_FromStringAndSize(area, 8 * n), int64))
        cdef list task = PyList_New(n)
        for k in range(n):
            index = PyLong_FromLongLong(indices[k])
            Py_INCREF(index)
            PyList_SET_ITEM(task, k, index)
        return task


include "ring/sequences.pxi"
include "ring/turns.pxi"
include "ring/free_slots.pxi"
