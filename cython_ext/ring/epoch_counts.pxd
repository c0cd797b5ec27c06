# cython: language_level=3
"""The numbers of one epoch: what was drawn, opened, taken and handed out."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class Reading:
    cdef readonly uint64_t taken        # batches that were taken and read, or have an error in their place
    cdef object ready                   # a batch that was taken and is not handed out yet
    cdef readonly uint32_t samples      # how many are in it
    cdef int worker                     # which worker made it
    cdef readonly Progress delivered    # what was handed out
    cdef public bint ended              # next() has raised StopIteration at the epoch's end


cdef class EpochCounts:
    # the conductor's
    cdef public Indices source          # gives the indices; None before the first draw
    cdef object drawn                   # an index that was drawn and is not opened yet
    # without workers: the indices whose batches are not handed out, in the order in which they were drawn
    cdef list pending
    cdef uint64_t asked                 # without workers: how many samples were drawn
    # Indices that were drawn and are not opened yet: a window is drawn as a whole before it is opened.
    cdef list waiting
    cdef bint refused                   # `drawn`, or with windows the first one of `waiting`, could not be opened
    cdef readonly uint64_t opened       # batches that were opened, or have an error in their place
    cdef readonly uint64_t samples      # how many samples are in these
    cdef public int last_worker         # the worker that the last batch was opened for; -1: none yet
    cdef readonly uint64_t first        # the sequence of the first batch
    # The number that the dataset has from set_epoch() when the first index is drawn; RING_NO_EPOCH: none.  Then a list of
    # pairs: from this draw on, it has another number.
    cdef int64_t dataset_epoch
    cdef list later
    # the reader's
    cdef readonly Reading reading

    cdef bint is_under_way(self) noexcept   # whether a batch was opened and is not taken
    cdef list of_this_thread(self, bint is_made)    # one of `pending`
    cdef int64_t number_of(self, uint64_t draw) except? -1      # the dataset's when this index was drawn
    # Whether nothing is left to draw, and all opened batches were handed out.  It is computed, never set.  A closed or
    # interrupted iterator gives no more batches either, but its epoch is not over.
    cdef bint is_over(self) noexcept
