"""Writes the states of a worker's random generators into the ring, and reads them for its successor."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from atomics cimport (
    RING_STEP, WHILE_REMEMBERING, ring_forget, ring_memory, ring_once, ring_remember, ring_remembered,
)


@cython.final
cdef class Handover:
    """One worker's part of the ring's memory: two halves, of which at least one is complete at any moment.

    Args:
        ring: the worker's side.
        worker: its number.
    """

    def __cinit__(self, Ring ring not None, int worker):
        self.stride = ring.memory_stride
        self.at = ring.mapping.base + ring.memory_at + 2 * worker * ring.memory_stride

    cdef ring_memory *half(self, int at) noexcept nogil:
        return <ring_memory *>(self.at + at * self.stride)

    cdef ring_memory *last(self, uint64_t claimed) noexcept nogil:
        """The half with the states after the last sequence that this worker published; NULL: neither.

        States after the claimed sequence do not count, because the worker died before it published that one.
        """
        cdef ring_memory *memory
        cdef ring_memory *found = NULL
        cdef uint64_t after, latest = 0
        cdef int k
        for k in range(2):
            memory = self.half(k)
            after = ring_remembered(memory)
            if latest < after <= claimed:
                latest, found = after, memory
        return found

    cdef Py_ssize_t room(self) except -1:
        """How many bytes of states fit into a half."""
        if self.stride < <Py_ssize_t>sizeof(ring_memory):
            raise RuntimeError("this ring was made without memory for the random states of workers "
                               "(on_worker_death='respawn')")
        return self.stride - <Py_ssize_t>sizeof(ring_memory)

    cdef int leave(self, uint64_t claimed, bytes states) except -1:
        """Write `states`, the states after the sequence that is claimed.

        Until that sequence is published, a successor needs the states after the one before it.  So that half stays,
        however many workers die here, and the other one is overwritten.  States that do not fit are left out: then a
        successor begins with the seeds of this worker.
        """
        cdef Py_ssize_t room = self.room(), size = PyBytes_GET_SIZE(states)
        cdef ring_memory *memory = self.half(0)
        if memory == self.last(claimed):
            memory = self.half(1)
        if size > room:
            size = 0
        ring_forget(memory)
        memcpy(<char *>memory + sizeof(ring_memory), PyBytes_AS_STRING(states), size)
        RING_STEP(WHILE_REMEMBERING)
        memory.size = size
        ring_remember(memory, claimed)
        return 0

    cdef bytes take(self, uint64_t claimed):
        """The states after the last sequence that was published; None if there are none."""
        cdef uint64_t size, room = self.room()
        cdef ring_memory *memory = self.last(claimed)
        if memory == NULL:
            return None
        size = ring_once(&memory.size)
        if size > room:
            raise overwritten("the size of a worker's random states", size, room)
        return PyBytes_FromStringAndSize(<char *>memory + sizeof(ring_memory), size) if size else None
