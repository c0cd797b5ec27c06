"""The cells for the states of an iterable dataset's streams: which are free, and which hold the current states.
Why there are always enough of them: NOTE [ Cells ] in stream_states.py.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize

from shmloader.core.ring cimport NO_CELL, NO_ROOM, Ring, overwritten


@cython.final
cdef class Cells:
    """The owner of each cell.  Without streams a ring has no cells, and all methods do nothing.

    Args:
        ring: whose cells they are.
    """
    cdef Mapping mapping
    cdef int count, workers
    cdef Py_ssize_t cell_at, cell_stride
    cdef list free                      # cells that belong to no sequence and no worker
    cdef list left                      # for each worker: the cell of its last state that counted, and the bytes in it
    cdef uint32_t taken, size           # the cell of the batch that was taken last, and the bytes in it; or NO_CELL

    def __cinit__(self, Ring ring):
        self.mapping, self.count, self.workers = ring.mapping, ring.cells, ring.workers
        self.cell_at, self.cell_stride = ring.cell_at, ring.cell_stride
        self.begin()

    cdef int begin(self) except -1:
        """Start another epoch: no stream has a state, and no sequence is in flight."""
        self.free, self.taken = list(range(self.count)), NO_CELL
        self.left = [(<uint32_t>NO_CELL, 0)] * self.workers
        return 0

    cdef int check_room(self, int sequences) except -1:
        if self.count and len(self.free) < sequences:
            raise SystemError(f"the ring has no cell for a stream's state: all {self.count} are in use, and NOTE "
                               "[ Cells ] in stream_states.py proves that one is free: this is a bug in shmloader")
        return 0

    cdef uint32_t give(self) except? 0xffffffff:
        """A cell for a sequence that is about to be opened."""
        return self.free.pop() if self.count else NO_CELL

    cdef int took(self, uint32_t cell, uint32_t size) except -1:
        """The batch of this cell was taken."""
        if self.count and self.taken != NO_CELL:    # the batch before was dropped
            self.free.append(self.taken)
        self.taken, self.size = cell, size
        return 0

    cdef int keep(self, int worker) except -1:
        """Make the state in the cell that was taken last the current state of this worker's stream."""
        cdef uint32_t before
        if not self.count or self.taken == NO_CELL:
            return 0
        before = self.left[worker][0]
        self.left[worker] = (self.taken, self.size)
        self.taken = NO_CELL
        if before != NO_CELL:
            self.free.append(before)
        return 0

    cdef list read(self):
        """The state of each stream: None if it has none, b"" if there was no memory to write it."""
        cdef uint32_t cell, size
        cdef list found = []
        for cell, size in self.left:
            if size == NO_ROOM:
                found.append(b"")
                continue
            if size > <uint64_t>self.cell_stride:
                raise overwritten("the size of a stream's state", size, self.cell_stride)
            found.append(PyBytes_FromStringAndSize(self.mapping.base + self.cell_at + cell * self.cell_stride, size)
                         if size else None)
        return found
