# cython: language_level=3
"""Writes a worker's batches into its payloads.  batch_writer.pyx describes the layout."""

from libc.stdint cimport uint64_t

from shmloader.core.batch_tree cimport Kept
from shmloader.core.tensors cimport elements
from shmloader.core.worker cimport WorkerSide

# ---------------------------------------------------------------------------------------------------------- layout.pxi

cdef class Block:                       # the memory of leaves that overlap: NOTE [ Views ]
    cdef readonly size_t address
    cdef readonly Py_ssize_t bytes
    cdef readonly list leaves           # their numbers
    cdef Py_ssize_t at                  # the offset in the payload; -1: it is not there yet

cpdef list blocks(list tensors)
cdef list place_all(WorkerSide ring, list leaves, list buffers, list words)
cdef int about_to_write(WorkerSide ring, Py_ssize_t at, Py_ssize_t bytes) except -1
cdef int copy_in(WorkerSide ring, object leaf, elements *of, Py_ssize_t at, tuple shape, tuple strides) except -1
cdef bint is_outermost(tuple strides, tuple shape)      # whether the elements of the first dimension lie farthest apart
cdef int note(list words, Py_ssize_t at, tuple shape, tuple strides) except -1


cdef class Writer:
    cdef WorkerSide ring
    cdef object objects, chunks
    cdef Kept kept                      # plan -> (its number, its pickle)
    cdef Py_ssize_t count, row, rows    # of a chunk: its samples, its first row, and the batch's rows; 0 rows: no chunk
    cdef list listed                    # which rows its samples are, where they are not one behind the other; or None
    cdef dict stacked                   # of a chunk: the address of a stacked tensor -> where its leaf begins
    cdef dict laid                      # the address of the first reserved row -> where its leaf begins
    cdef Py_ssize_t laid_from, laid_to  # the reserved part of the payload
    cdef bint apart                     # a chunk's tensors must not lie in the slot, although its rows do
    cdef bint converts, is_known        # batches do not have all that was collated for them; or this is not known yet
    cdef uint64_t room_at               # address of what room() returned last
    cdef unsigned long thread           # the one that claims and publishes

    cdef bint may_write(self) noexcept
    cdef object found(self, object batch, object first)
    cpdef object stack(self, object batch)
    cdef object room(self, Py_ssize_t bytes, object dtype, tuple shape)
    cdef str cut_by(self)
    cdef Py_ssize_t entry_of(self, Py_ssize_t k) except -1
    cdef object stack_chunk(self, object batch, object rows)
    cpdef object stack_numbers(self, object batch)
    cpdef object stack_arrays(self, object batch)
    cdef object arrays_stacked(self, object dtype, tuple shape, char **rows, Py_ssize_t bytes)
    cdef object arrays_found(self, object dtype, tuple shape, char **rows, Py_ssize_t bytes)
    cdef int place_rows(self, object leaf, list words) except -1
    cdef int scatter(self, object leaf, elements *of, Py_ssize_t at, Py_ssize_t size) except -1
    cdef object write_objects(self, bytes pickled, list buffers)
    cdef tuple learn(self, tuple plan)
