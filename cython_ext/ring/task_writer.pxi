"""Writes a task, which is what the sampler gave for a batch or a chunk: as 64-bit integers, or pickled.
Indices that are all int, or all numpy.int64, arrive as what they were; of other and mixed ones there is a pickle.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact

from atomics cimport ring_ask
from shmloader.core.ring cimport INDEX, INDICES, NUMPY_INDEX, NUMPY_INDICES, PICKLED, Ring

import numpy

cdef object int64 = numpy.int64


@cython.final
cdef class TaskWriter:
    """Writes tasks into the areas of sequences that are about to be opened.

    Args:
        ring: whose sequences they are.
        dumps: pickles any other task.
    """
    cdef object segment, dumps
    cdef Mapping mapping
    cdef ring_entry *entry
    cdef int entries
    cdef Py_ssize_t area_at, area_stride
    cdef uint64_t *room                 # bytes that have pages in each entry's area, for tasks

    def __cinit__(self, Ring ring, dumps):
        cdef uint64_t area_commit = ring.segment.geometry.area_commit
        cdef int k
        self.segment, self.mapping, self.entry, self.dumps = ring.segment, ring.mapping, ring.entry, dumps
        self.entries, self.area_at, self.area_stride = ring.entries, ring.area_at, ring.area_stride
        self.room = <uint64_t *>calloc(ring.entries, sizeof(uint64_t))
        if self.room == NULL:
            raise MemoryError()
        for k in range(ring.entries):
            self.room[k] = area_commit

    def __dealloc__(self):
        free(self.room)

    cdef int write(self, uint64_t sequence, task) except -1:
        """Write a task into the area of a sequence that is about to be opened."""
        cdef ring_ask *ask = &self.entry[sequence % self.entries].ask
        cdef bytes pickled
        cdef Py_ssize_t n
        cdef bint numpys
        if type(task) is list:
            n = PyList_GET_SIZE(task)
            numpys = n > 0 and type(<object>PyList_GET_ITEM(task, 0)) is int64
            if self.indices_written(<int64_t *>self.area_for(sequence, 8 * n), task, n, numpys):
                ask.task_kind, ask.task_size = NUMPY_INDICES if numpys else INDICES, <uint32_t>n
                return 0
        elif type(task) is int or type(task) is int64:
            numpys = type(task) is int64
            if self.indices_written(<int64_t *>self.area_for(sequence, 8), [task], 1, numpys):
                ask.task_kind, ask.task_size = NUMPY_INDEX if numpys else INDEX, 1
                return 0
        pickled = self.dumps(task)
        n = PyBytes_GET_SIZE(pickled)
        memcpy(self.area_for(sequence, n), PyBytes_AS_STRING(pickled), n)
        ask.task_kind, ask.task_size = PICKLED, <uint32_t>n
        return 0

    cdef char *area_for(self, uint64_t sequence, Py_ssize_t bytes) except NULL:
        """The area of a sequence that is about to be opened, with pages for this number of bytes."""
        cdef int at = sequence % self.entries
        if <uint64_t>bytes > self.room[at]:
            self.room[at] = self.segment.commit_task(at, bytes)
        return self.mapping.base + self.area_at + at * self.area_stride

    cdef bint indices_written(self, int64_t *at, list indices, Py_ssize_t count, bint numpys) except -1:
        """Write indices; false if one of them is no 64-bit int, or no numpy.int64 if `numpys`."""
        cdef Py_ssize_t k
        cdef int overflow = 0
        cdef object index
        if PyList_GET_SIZE(indices) != count:   # another thread may have changed it while pages were committed
            return False
        for k in range(count):
            index = <object>PyList_GET_ITEM(indices, k)
            if numpys:
                if type(index) is not int64:
                    return False
                at[k] = index
                continue
            if not PyLong_CheckExact(index):
                return False
            at[k] = PyLong_AsLongLongAndOverflow(index, &overflow)
            if overflow:
                return False
        return True
