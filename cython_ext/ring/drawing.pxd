# cython: language_level=3
"""Draws indices of an epoch."""


cdef class Drawing:
    cdef TrainerSide ring

    cdef object draw(self, EpochCounts epoch)           # the next index; NOTHING if its source has no more
    # Whether another exception of the sampler, which has raised one, would take no batch's place (rule 8).
    cdef bint takes_no_place(self, EpochCounts epoch) noexcept
