# cython: language_level=3
"""Draws indices of an epoch, and of the next one."""

from shmloader.core.epoch_counts cimport EpochCounts
from shmloader.core.trainer cimport TrainerSide


cdef class Drawing:
    cdef TrainerSide ring
    cdef object conductor

    cdef object draw(self, EpochCounts epoch)           # the next index; NOTHING if its source has no more
    # Whether another exception of the sampler, which has raised one, would take no batch's place (rule 8).
    cdef bint takes_no_place(self, EpochCounts epoch) noexcept
    # If other processes read, draw as many indices as would be open without them.
    cdef int draw_all(self, EpochCounts epoch) except -1
    cdef int asked_for(self) except -1                  # how many batches are under way, or wait to be opened
    cdef int draw_next(self) except -1
