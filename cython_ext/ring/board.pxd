# cython: language_level=3
"""The bells of a crew's workers, which all its rings ring: NOTE [ Crew ] in trainer/shared_workers.py."""

from libc.stdint cimport uint32_t, uint64_t

from atomics cimport ring_worker
from ring.spin cimport ring_spin
from shmloader.core.ring cimport Mapping
from shmloader.core.worker cimport WorkerSide


# A line for each worker has its bell, and counts the messages sent and heard.  The last line has the trainer's bell.
cdef class Board:
    cdef Mapping mapping
    cdef ring_worker *worker
    cdef readonly int workers
    cdef uint32_t deaths                # each death ends all waits for workers


cdef class Hand:                        # a worker's side of the board
    cdef Board board
    cdef readonly int me
    cdef uint32_t seen                  # messages that were heard
    cdef uint64_t turns                 # sequences claimed
    cdef ring_spin spin

    cdef bint is_called(self) noexcept nogil
    cdef WorkerSide choose(self, list sides)
    cdef int pass_on(self, list sides, WorkerSide taken) except -1
