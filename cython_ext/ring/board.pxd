# cython: language_level=3
"""What a crew's workers sleep on, whichever ring has something for them: NOTE [ Crew ] in trainer/shared_workers.py."""

from libc.stdint cimport uint32_t, uint64_t

from atomics cimport ring_worker
from ring.spin cimport ring_spin
from shmloader.core.ring cimport Mapping
from shmloader.core.worker cimport WorkerSide


cdef class Board:     # lines: a worker's bell, how many messages it was sent and has heard; the last has the trainer's bell
    cdef Mapping mapping
    cdef ring_worker *worker
    cdef readonly int workers
    cdef uint32_t deaths                # a wait for a worker ends with each


cdef class Hand:                        # a worker's side of the board
    cdef Board board
    cdef readonly int me
    cdef uint32_t seen                  # messages
    cdef uint64_t turns                 # sequences claimed
    cdef ring_spin spin

    cdef bint is_called(self) noexcept nogil
    cdef WorkerSide choose(self, list sides)
    cdef int pass_on(self, list sides, WorkerSide taken) except -1
