# cython: language_level=3, boundscheck=False, wraparound=False
"""A batch that the trainer has taken, as bytes: when the last tensor or array over them dies, its slot is free again.
It checks the places and sizes that workers wrote.  NOTE [ Lease ] in delivery.py.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

from atomics cimport ring_answer, ring_load, ring_once, ring_once_32, ring_owner
from shmloader.core.ring cimport KEPT, SKIPPED_KEPT, Ring, Sequences, Slots, overwritten, ring_given


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class Lease:
    """The bytes of one delivered batch, exported as a buffer.  See NOTE [ Lease ] in delivery.py.

    Every tensor and array over the payload keeps the lease alive.  When the last one dies, the payload is free again.
    """
    cdef int hold(self, Ring ring, Slots slots, Sequences sequences, ring_given *given) except -1:
        cdef answer_copy *copy
        cdef ring_answer *answer
        cdef uint64_t word, sequence = given.sequence
        cdef int k, at
        cdef bint listed = given.chunks > 0 and sequences.listed[sequence % ring.entries] is not None
        self.answers = &self.whole
        self.payload = -1               # until nothing can fail
        if given.chunks > 1:
            self.answers = <answer_copy *>calloc(given.chunks, sizeof(answer_copy))
            if self.answers == NULL:
                raise MemoryError()
        self.chunks, self.rows = given.chunks, given.rows
        self.listed = [] if listed else None
        for k in range(given.chunks):
            at = sequence % ring.entries
            if listed:
                self.listed.append(sequences.listed[at])
            answer = &ring.entry[at].answer
            copy = &self.answers[k]
            copy.used, copy.outcome = ring_once(&answer.used), ring_once_32(&answer.outcome)
            copy.meta_at, copy.meta_size = ring_once_32(&answer.meta_at), ring_once_32(&answer.meta_size)
            copy.plan_at, copy.plan_size = ring_once_32(&answer.plan_at), ring_once_32(&answer.plan_size)
            copy.objects_at, copy.objects_size = ring_once(&answer.objects_at), ring_once(&answer.objects_size)
            copy.report_size = ring_once_32(&answer.state_size)
            self.reported |= copy.report_size != 0
            word = ring_load(&ring.entry[at])
            if not sequences.owned(at, word, &copy.owner):
                raise overwritten("the worker that made a batch", ring_owner(word), ring.workers - 1)
            copy.row, copy.area = sequences.given[at].row, ring.area(sequence)
            self.used = max(self.used, copy.used)
            sequence = sequences.given[at].then
        self.ring, self.slots = ring, slots
        self.room = ring.pages_of(given.payload)
        self.bytes = self.used if self.used <= self.room else 0     # otherwise meta() raises
        try:
            ring.reach(given.payload, self.bytes)
        except MemoryError as error:    # it comes in the batch's place
            self.bytes, self.out_of_reach = 0, error
        self.data = ring.slot(given.payload)
        self.payload = given.payload
        slots.lend(given.payload)
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.bytes, 0, flags)

    def __dealloc__(self):
        # This may run in any thread, at any time, also while the interpreter shuts down.  So it calls no Python, takes
        # no lock and does not wait.  A guarded lease makes only the call that guard_with() allows.
        if self.chunks > 1:
            free(self.answers)
        if self.slots is not None and self.payload >= 0:
            if self.guarded:
                self.slots.hold_back(self.payload)
            else:
                self.slots.give_back(self.payload)

    def guard(self, Py_ssize_t locked) -> bool:
        """Guard this lease, if the whole batch lies in the first `locked` bytes of its payload.

        When a guarded lease dies, that is only noted.  The payload counts as lent until it is reclaimed.
        """
        if self.bytes > locked or self.used > self.room:
            return False
        self.guarded = True
        return True

    def fail(self) -> None:
        """The batch cannot be read: took() frees its payload, although the exception's frames may still refer to it."""
        self.failed = True

    def release(self) -> None:
        """Free the payload now, although tensors over it may still live."""
        if self.payload >= 0:
            self.slots.give_back(self.payload)
            self.payload = -1

    cdef int retire(self) except -1:
        """Leave the payload to the workers that keep it.

        If the ring is closed, no worker lives, and the payload is given back.
        """
        cdef int k
        if self.ring.mapping.closed or self.payload < 0:
            self.release()
            return 0
        self.slots.retire(self.payload, {
            self.answers[k].owner for k in range(self.chunks) if self.answers[k].outcome in (KEPT, SKIPPED_KEPT)
        })
        self.payload = -1
        return 0

    @property
    def owner(self) -> int:
        """The worker that made it, or its first chunk."""
        return self.answers[0].owner

    @property
    def outcome(self) -> int:
        """FILLED, KEPT (to be copied), SKIPPED or SKIPPED_KEPT (it holds nothing)."""
        cdef int k
        for k in range(self.chunks):
            if self.answers[k].outcome == KEPT:
                return KEPT
        return self.answers[0].outcome

    @property
    def overflowed(self) -> bool:
        """Whether its pages are in the memfd because /dev/shm had no room."""
        self.ring.mapping.check_open()
        return ring_once_32(&self.ring.payload[self.payload].overflowed) == 1

    cdef answer_copy *answer(self, int chunk) except NULL:
        """The report on a chunk whose area is about to be read."""
        self.ring.mapping.check_open()
        if not 0 <= chunk < self.chunks:
            raise IndexError(f"there is no chunk {chunk}: this batch's are 0 to {self.chunks - 1}")
        return &self.answers[chunk]

    cpdef bytes meta(self, int chunk=0):
        """The description of its leaves, as WorkerSide.describe() got it.

        Raises:
            RuntimeError: the worker cannot have written what is in the entry's words.
        """
        cdef answer_copy *copy = self.answer(chunk)
        if self.out_of_reach is not None:
            raise self.out_of_reach
        if copy.outcome > 1:
            raise overwritten("a batch's outcome", copy.outcome, KEPT)
        if self.used > self.room:
            raise overwritten("a batch's size", self.used, self.room)
        check("a batch's description", copy.meta_at, copy.meta_size, self.ring.area_stride)
        return PyBytes_FromStringAndSize(copy.area + copy.meta_at, copy.meta_size)

    cpdef bytes plan(self, int chunk=0):
        """The pickled plan, as WorkerSide.describe() got it.  Call it before the next open(), which overwrites it."""
        cdef answer_copy *copy = self.answer(chunk)
        check("a batch's plan", copy.plan_at, copy.plan_size, self.ring.area_stride)
        return PyBytes_FromStringAndSize(copy.area + copy.plan_at, copy.plan_size)

    cpdef tuple objects(self, uint64_t leaves_end):
        """Where the table of its pickled leaves lies: offset and size in bytes.  The size is 0 if there are none.

        Args:
            leaves_end: where the last of the other leaves ends, which is checked too.
        """
        check("a batch's leaves", 0, leaves_end, self.bytes)
        if self.whole.objects_size:
            check("the table of a batch's pickled leaves", self.whole.objects_at, self.whole.objects_size, self.bytes)
        return self.whole.objects_at, self.whole.objects_size

    @property
    def may_have_objects(self) -> bool:
        """Whether any of its leaves may be pickled.  For chunks this is not known, so it is true."""
        return self.rows > 0 or self.whole.objects_size > 0

    cpdef int first_row(self, int chunk) except -1:
        """The row of the batch at which a chunk begins."""
        return self.answer(chunk).row

    cpdef bytes chunk_objects(self, int chunk, uint64_t leaves_end):
        """The pickled leaves of a chunk, which lie after its plan; empty if there are none."""
        cdef answer_copy *copy = self.answer(chunk)
        check("a batch's leaves", 0, leaves_end, self.bytes)
        check("a chunk's pickled leaves", copy.objects_at, copy.objects_size, self.ring.area_stride)
        return PyBytes_FromStringAndSize(copy.area + copy.objects_at, copy.objects_size)

    cpdef list reports(self):
        """The reports of the workers, one for each chunk.  Only for map-style datasets, and before the next open()."""
        cdef list found = []
        cdef answer_copy *copy
        cdef uint64_t at
        cdef int k
        for k in range(self.chunks):
            copy = self.answer(k)
            check("a batch's plan", copy.plan_at, copy.plan_size, self.ring.area_stride)
            at = copy.plan_at + copy.plan_size
            if self.rows:       # a chunk's pickled leaves lie there
                check("a chunk's pickled leaves", at, copy.objects_size, self.ring.area_stride)
                at += copy.objects_size
            check("the report on a batch", at, copy.report_size, self.ring.area_stride)
            found.append(PyBytes_FromStringAndSize(copy.area + at, copy.report_size))
        return found


cdef inline int check(str what, uint64_t at, uint64_t size, uint64_t room) except -1:
    if size > room or at > room - size:
        raise overwritten(f"the place of {what}", f"{at}, of {size} bytes", f"in {room} bytes")
    return 0
