# cython: language_level=3
"""A batch that was taken: its bytes, for as long as something uses them, and what its workers reported about it."""

from libc.stdint cimport uint32_t, uint64_t

from shmloader.core.ring cimport Ring, Sequences, Slots, ring_given

cdef struct answer_copy:                # what the worker of one sequence reported; each word was read once
    uint64_t used, meta_at, meta_size, plan_at, plan_size, objects_at, objects_size
    uint32_t outcome, row, report_size
    int owner
    char *area


cdef class Lease:
    cdef Ring ring
    cdef Slots slots
    cdef readonly int chunks            # sequences that made it
    cdef readonly int rows              # of the batch, if it was made in chunks; otherwise 0
    cdef readonly list listed           # for each chunk, its rows: NOTE [ Windows ]; None: they are consecutive
    cdef readonly int payload           # -1: it has been given back
    cdef readonly bint reported         # a worker has a report about it
    cdef bint guarded                   # a copy to a device may outlive it
    cdef bint failed                    # it could not be read
    cdef object out_of_reach            # why this process cannot map it; None: it can
    cdef object loan                    # in a reader of a served loader: what lends it the memory; dies with this lease
    cdef char *data
    cdef Py_ssize_t bytes
    cdef uint64_t used, room            # bytes that workers report as written, and bytes that have pages
    cdef answer_copy whole              # the report on a batch that is one sequence
    cdef answer_copy *answers           # that, or one for each chunk

    # Take hold of the batch of these sequences, which are ready.
    cdef int hold(self, Ring ring, Slots slots, Sequences sequences, ring_given *given) except -1
    cdef int retire(self) except -1     # leave the payload to the workers that keep it
    cdef answer_copy *answer(self, int chunk) except NULL
    # What its workers reported.  Each word was read once, and is checked before it is used.
    cpdef bytes meta(self, int chunk=*)
    cpdef bytes plan(self, int chunk=*)
    cpdef tuple objects(self, uint64_t leaves_end)
    cpdef int first_row(self, int chunk) except -1
    cpdef bytes chunk_objects(self, int chunk, uint64_t leaves_end)
    cpdef list reports(self)
