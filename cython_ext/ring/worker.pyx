# cython: language_level=3
"""One worker's side of the ring: it sleeps until it has a task, claims it, fills the slot, and publishes the batch.
It aligns tensors to 128 bytes, and refuses a process that is forked in it: NOTE [ Forked children ] in worker.pxd.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.long cimport PyLong_AsLongLong
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from atomics cimport (
    AFTER_ANNOUNCE, AFTER_BELL, AFTER_CLAIM, AFTER_PUBLISH, BEFORE_PUBLISH, RING_ANY, RING_MAGIC, RING_OPEN, RING_STEP,
    RING_NO_EPOCH, RING_VERSION, RING_VOID, WHILE_FILLING, ring_announce, ring_claim, ring_committed, ring_entry, ring_folds,
    ring_load, ring_noted, ring_once, ring_once_32, ring_owner, ring_publish, ring_raised, ring_revocations, ring_ring,
    ring_rise, ring_seq, ring_sleep, ring_state, ring_toll,
)
from shmloader.core.ring cimport (
    FILLED, KEPT, LISTED, NO_CELL, NO_ROOM, PICKLED, Ring, check_index, lowest, overwritten, spin_budget, spin_learn,
    spin_once,
)

include "ring/lane.pxi"
include "ring/parts.pxi"
include "ring/handover.pxi"
include "ring/mapped_pages.pxi"

cdef extern from "process/forks.h" nogil:
    unsigned forks_so_far
    int forks_watch()

if forks_watch():
    raise MemoryError()


@cython.final
cdef class WorkerSide(Ring):
    """What one worker does: claims the sequences that are its own, fills their payloads, publishes them.

    It never waits for a free slot, because a sequence is opened with its slot.  It sleeps in claim() until a sequence
    is open for it; `OpeningSide` in opening.pxi opens the sequence, and wakes the worker.

    Args:
        me: its index.
        first: a sequence below which all are done.
    """
    def __cinit__(self, segment, spin, int me, uint64_t first):
        cdef uint64_t magic = ring_once(&self.header.magic)
        cdef uint32_t version = ring_once_32(&self.header.version)
        self.me, self.current, self.cursor, self.forks = me, -1, first, forks_so_far
        check_index("worker", me, self.workers)
        if magic != RING_MAGIC or version != RING_VERSION:
            raise RuntimeError(f"this is not a ring of version {RING_VERSION}: magic {magic:#x}, version {version}; "
                               "trainer and worker must run the same shmloader")
        self.in_order, self.lane = ring_once_32(&self.header.in_order) != 0, Lane(self, me)
        self.handover, self.parts = Handover(self, me), Parts()
        self.room = <uint64_t *>calloc(self.entries, sizeof(uint64_t))
        self.mapped = MappedPages(<uint64_t>self.mapping.base, self.mapping.size)
        self.cell_room = <uint64_t *>calloc(self.cells + 1, sizeof(uint64_t))
        if self.room == NULL or self.cell_room == NULL:
            raise MemoryError()
        cdef int k
        cdef uint64_t area_commit = segment.geometry.area_commit
        for k in range(self.entries):
            self.room[k] = area_commit

    def __dealloc__(self):
        free(self.room)
        free(self.cell_room)

    # ---------------------------------------------------------------------------------------------- tasks

    cdef bint find_open(self) noexcept nogil:
        """Walk to the next sequence that this worker may claim; false where that one is not open yet."""
        cdef uint64_t word
        cdef uint32_t revocations
        if not self.in_order:
            self.who = self.me
            return lowest(self.entry, self.entries, RING_OPEN, self.me, NULL, &self.cursor)
        revocations = ring_revocations(self.header)
        if revocations != self.revocations:     # what was claimed when it was passed over may be open again
            self.revocations = revocations
            self.cursor -= min(self.cursor, <uint64_t>self.entries)
        while True:
            word = ring_load(&self.entry[self.cursor % self.entries])
            if ring_seq(word) < self.cursor or ring_state(word) == RING_VOID:
                return False
            if ring_seq(word) == self.cursor and ring_state(word) == RING_OPEN:
                self.who = ring_owner(word)
                if self.who == <uint32_t>self.me or self.who == RING_ANY:
                    return True
            self.cursor += 1

    cdef bint over(self) noexcept nogil:
        return ring_raised(&self.header.stop) or ring_raised(&self.worker[self.me].dismissed)

    def claim(self):
        """Wait for this worker's next sequence and claim it.

        Returns:
            Its task: an index, a list of indices, or bytes (a pickled task); None when it is time to leave.  Then
            `sequence` is claimed and `current` is the payload to fill.
        """
        self.check_not_forked()
        cdef uint32_t seen
        cdef bint leaving, found = self.find_open()
        cdef int k = 0, budget = 0 if found else spin_budget(&self.spin)
        if budget:
            with nogil:
                while k < budget and not found and not self.over() and spin_once(&self.spin):
                    k += 1
                    found = self.find_open()
            spin_learn(&self.spin, k, found)
        while True:
            if ring_raised(&self.header.stop):
                return None
            # Read before find_open(), which then sees every sequence that was opened before the dismissal.
            leaving = ring_raised(&self.worker[self.me].dismissed)
            if self.find_open():
                if ring_claim(&self.entry[self.cursor % self.entries], self.cursor, self.who, self.me):
                    break
                continue    # another one was quicker
            if leaving:
                return None
            with nogil:
                self.lane.sleeps()
                seen = ring_announce(&self.worker[self.me].bell)
                RING_STEP(AFTER_ANNOUNCE)
                if not self.find_open() and not self.over():
                    ring_sleep(&self.worker[self.me].bell, seen, NULL)
                ring_rise(&self.worker[self.me].bell)
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx
        return self.begin()

    cdef object begin(self):
        """The task of the sequence at the cursor, which this worker has claimed."""
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        self.lane.claimed(entry)
        RING_STEP(AFTER_CLAIM)
        cdef uint32_t kind = 0, payload = ring_once_32(&entry.ask.payload)
        cdef uint64_t size = 0, pages
        if payload >= <uint32_t>self.payloads:
            raise overwritten("a task's payload", payload, self.payloads - 1)
        pages = ring_committed(&self.payload[payload])
        if pages > <uint64_t>self.slot_most:
            raise overwritten("a payload's size", pages, self.slot_most)
        self.measure(self.cursor, &kind, &size)
        self.task_bytes = size if kind == PICKLED else 8 * size
        self.current, self.used, self.fresh = payload, 0, pages
        self.row, self.rows = ring_once_32(&entry.ask.row), ring_once_32(&entry.ask.rows)
        self.listed = self.rows > 0 and self.row == <uint32_t>LISTED
        self.to_leave, self.state_size = ring_once_32(&entry.ask.cell), 0
        self.follow(self.current)
        self.mapped.follow(ring_folds(self.header))
        return self.read_task(self.cursor, kind, size)

    @property
    def seed(self) -> int:
        """The seed of the batch that is claimed."""
        return ring_once(&self.entry[self.cursor % self.entries].ask.seed)

    @property
    def epoch(self) -> int:
        """The epoch of the batch that is claimed."""
        return ring_once_32(&self.entry[self.cursor % self.entries].ask.epoch)

    @property
    def epoch_seed(self) -> int:
        """The seed of the epoch of the batch that is claimed."""
        return ring_once(&self.header.epoch_seed)

    @property
    def dataset_epoch(self):
        """The number that the dataset had when the claimed batch's index was drawn; None: none."""
        cdef int64_t epoch = <int64_t>ring_once(<uint64_t *>&self.entry[self.cursor % self.entries].ask.dataset_epoch)
        return None if epoch == RING_NO_EPOCH else epoch

    @property
    def sequence(self) -> int:
        """The sequence that is claimed."""
        return self.cursor

    def upcoming(self, uint64_t after, int most):
        """At most `most` tasks that are open for this worker, after `after` and the claimed one, and that stay open."""
        self.check_claimed()
        return upcoming(self, self.me, self.cursor, after, most)

    # -------------------------------------------------------------------------------------------- filling

    cdef bint is_forked(self) noexcept nogil:
        return self.forks != forks_so_far

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the worker: NOTE [ Forked children ]."""
        return self.is_forked()

    cdef int check_not_forked(self) except -1:
        if self.is_forked():
            raise RuntimeError(f"this process, which was forked in DataLoader worker {self.me}, is no worker: it came "
                               "out of the dataset, and would write into the batch of its parent. End it in there, "
                               "with os._exit()")
        return 0

    cdef int check_claimed(self) except -1:
        """Between tasks there is no payload to touch: `current` is no index then."""
        self.check_not_forked()
        if self.current < 0:
            raise RuntimeError("no sequence is claimed, so there is no payload to write to")
        return 0

    cpdef Py_ssize_t allocate(self, Py_ssize_t bytes) except -1:
        """Set bytes of the current payload aside, and have pages for them.

        Returns:
            Their offset in the payload.

        Raises:
            MemoryError: the payload cannot grow so far, or this process may not map so much.
        """
        cdef Py_ssize_t at, pages
        self.check_claimed()
        if bytes < 0:
            raise ValueError(f"{bytes} bytes cannot be set aside")
        if self.parts.kept:
            self.used = self.parts.without_last(self.used)
            at = self.parts.unused(bytes)
            if at >= 0:
                return at
        at = (self.used + ALIGN - 1) // ALIGN * ALIGN
        pages = self.pages_of(self.current)
        while bytes > pages - at:
            self.segment.commit(self, self.current, <object>at + bytes, self.used)
            pages = self.pages_of(self.current)
        if bytes > <Py_ssize_t>self.mapping.room(self.current) - at:
            self.reach(self.current, at + bytes)
            if self.fill is not None:
                self.over_room(self.fill)
        RING_STEP(WHILE_FILLING)
        self.used = at + bytes
        return at

    cdef Part part(self, Py_ssize_t bytes):
        """Allocate bytes for a leaf that is collated there.  If it is not in the batch, another leaf gets them."""
        cdef Part part = Part.__new__(Part)
        self.used = self.parts.without_last(self.used)
        part.before, part.bytes = self.used, bytes
        part.at = self.allocate(bytes)
        part.before = min(part.before, part.at)
        part.fill, part.data = self.buffer(), self.slot(self.current) + part.at
        self.parts.kept.append(part)
        return part

    cpdef int unused_parts(self) noexcept:
        """How many parts nothing views."""
        return self.parts.count_unused()

    cpdef int map_written(self, Py_ssize_t at, Py_ssize_t bytes) except -1:
        """Before these bytes of the current payload are written: have the kernel map their pages."""
        self.check_inside(at, bytes)
        cdef uint64_t start = <uint64_t>self.slot(self.current)
        self.mapped.before_write(start + at, bytes, start + self.fresh)
        return 0

    def fetched(self) -> None:
        """The samples of what is claimed are there, and are about to be collated."""
        self.check_not_forked()
        self.lane.fetched()

    def rewind(self) -> None:
        """Free what was allocated, because the batch failed and its exception goes into the payload instead."""
        self.used = 0
        self.parts.kept.clear()

    cpdef Fill buffer(self):
        """The current payload as a buffer, for tensors over it.  One object, until publish() or a larger room."""
        self.check_claimed()
        if self.fill is None:
            self.over_room(None)
        return self.fill

    cdef void over_room(self, Fill former):
        """Have a buffer over the current payload's room; tensors of its batch may be over a former one."""
        self.fill = Fill.__new__(Fill)
        self.fill.ring, self.fill.former = self, former
        self.fill.data, self.fill.bytes = self.slot(self.current), self.mapping.room(self.current)

    cpdef Py_ssize_t offset_of(self, uint64_t address, Py_ssize_t bytes) except? -1:
        """The offset of these bytes in the allocated part of the current payload; -1 if they lie elsewhere."""
        cdef uint64_t start, used = self.used
        self.check_claimed()
        start = <uint64_t>self.slot(self.current)
        if start <= address <= start + used and <uint64_t>bytes <= start + used - address:
            return address - start
        start = <uint64_t>self.mapping.base + self.slot_at + self.current * self.slot_stride    # its first room
        used = min(used, <uint64_t>self.slot_stride)
        if start <= address <= start + used and <uint64_t>bytes <= start + used - address:
            return address - start
        return -1

    cpdef uint64_t address(self, Py_ssize_t at) except 0:
        """The address of offset `at` of the current payload, in this process."""
        self.check_inside(at, 0)
        return <uint64_t>self.slot(self.current) + at

    cdef int check_inside(self, Py_ssize_t at, Py_ssize_t bytes) except -1:
        """Whether these bytes were allocated."""
        self.check_claimed()
        if not 0 <= at <= self.used or not 0 <= bytes <= self.used - at:
            raise ValueError(f"{bytes} bytes at {at} are not in the {self.used} that are allocated of this payload")
        return 0

    cpdef int write(self, Py_ssize_t at, object data) except -1:
        """Copy a buffer to offset `at` of the current payload."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self.check_inside(at, view.len)
            with nogil:
                memcpy(self.slot(self.current) + at, view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    # A worker's description of a batch lies in the entry's area, after the task.  The task stays, because a process
    # that replaces this worker may need it.

    cpdef int describe(self, list words, bytes plan, bytes beside=b"") except -1:
        """Write the meta and the plan of the batch (batch_writer.pyx), and what a chunk has beside them, into the area.

        Args:
            words: the meta.
            plan: the pickled plan.
            beside: a chunk's pickled leaves.

        Raises:
            MemoryError: the area cannot grow so far.
        """
        self.check_claimed()
        cdef int at = self.cursor % self.entries
        cdef ring_entry *entry = &self.entry[at]
        cdef Py_ssize_t k, count = len(words), size = PyBytes_GET_SIZE(plan), more = PyBytes_GET_SIZE(beside)
        # after the task, by its length when it was claimed: the word with the length is not read again
        cdef uint64_t meta_at = (self.task_bytes + 7) // 8 * 8, plan_at = meta_at + 8 * count
        cdef char *area = self.area(self.cursor)
        cdef int64_t *meta = <int64_t *>(area + meta_at)
        if plan_at + size + more > self.room[at]:
            self.room[at] = self.segment.commit_answer(at, plan_at + size + more)
        for k in range(count):
            meta[k] = PyLong_AsLongLong(words[k])
        memcpy(area + plan_at, PyBytes_AS_STRING(plan), size)
        memcpy(area + plan_at + size, PyBytes_AS_STRING(beside), more)
        entry.answer.meta_at, entry.answer.meta_size = <uint32_t>meta_at, <uint32_t>(8 * count)
        entry.answer.plan_at, entry.answer.plan_size = <uint32_t>plan_at, <uint32_t>size
        entry.answer.objects_at, entry.answer.objects_size = plan_at + size, more
        self.described = plan_at + size + more
        return 0

    def report(self, bytes text not None) -> None:
        """Write a report on the batch, after its description and before it is published: the replaced samples.

        Raises:
            MemoryError: there are no pages for it.
        """
        cdef int at = self.cursor % self.entries
        cdef uint64_t size = PyBytes_GET_SIZE(text)
        self.check_claimed()
        if not size:
            return
        if self.described + size > self.room[at]:
            self.room[at] = self.segment.commit_answer(at, self.described + size)
        memcpy(self.area(self.cursor) + self.described, PyBytes_AS_STRING(text), size)
        self.state_size = <uint32_t>size

    cpdef int point_to_objects(self, Py_ssize_t at, Py_ssize_t size) except -1:
        """Record where in the payload the table of the batch's pickled leaves lies."""
        self.check_claimed()
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        entry.answer.objects_at, entry.answer.objects_size = at, size
        return 0

    def leave_state(self, bytes state not None) -> None:
        """Write the stream's state after the claimed batch, before that is published.

        Raises:
            MemoryError: there are no pages for it.
        """
        cdef uint64_t size = PyBytes_GET_SIZE(state)
        cdef uint32_t cell = self.to_leave
        self.check_claimed()
        self.state_size = 0
        if cell == NO_CELL or not size:
            return
        if cell >= <uint32_t>self.cells:
            raise overwritten("the cell for a stream's state", cell, self.cells - 1)
        self.state_size = NO_ROOM       # unless it is written
        if size > self.cell_room[cell]:
            self.cell_room[cell] = self.segment.commit_state(cell, size)
        memcpy(self.cell(cell), PyBytes_AS_STRING(state), size)
        self.state_size = <uint32_t>size

    def has_views(self) -> bool:
        """Whether tensors over the current payload are still alive in this process."""
        cdef Fill each = self.fill
        self.parts.kept.clear()      # those that are viewed live on, and each of them refers to `fill`
        while each is not None:
            if (<PyObject *>each).ob_refcnt > 2:    # `each` is one, and whoever comes before it has another
                return True
            each = each.former
        return False

    def publish(self, int outcome) -> bool:
        """Hand the current payload to the trainer, and wake it; false where the claim was taken away."""
        self.check_not_forked()
        cdef ring_entry *entry = &self.entry[self.cursor % self.entries]
        entry.answer.used, entry.answer.outcome, entry.answer.state_size = self.used, outcome, self.state_size
        self.current, self.fill = -1, None
        self.parts.kept.clear()
        self.lane.published(outcome == FILLED or outcome == KEPT)
        RING_STEP(BEFORE_PUBLISH)
        if not ring_publish(entry, self.cursor, self.me):
            ring_toll(&self.header.ready_bell)      # if the word was overwritten instead, the trainer finds that
            return False
        self.cursor += 1
        RING_STEP(AFTER_PUBLISH)
        ring_ring(&self.header.ready_bell)
        RING_STEP(AFTER_BELL)
        return True

    # ------------------------------------------------------------------------------- for the worker in its place

    def remember(self, bytes states) -> None:
        """Leave `states`, as they are at the end of the sequence that is claimed, before it is published."""
        self.check_not_forked()
        self.handover.leave(self.cursor, states)

    def recall(self):
        """The random states that the worker before this one left with the last sequence that it published; None: none.

        Call it when the next sequence is claimed.
        """
        return self.handover.take(self.cursor)


include "ring/claims.pxi"
