# cython: language_level=3
"""What the sequences of a window are to be opened with: NOTE [ Windows ] in ring.pxd."""

from libc.stdint cimport uint32_t, uint64_t

cdef struct given_task:
    int worker, payload
    int chunks                          # into how many the batch is cut, if this is the first; 0: it is a further one
    uint32_t row, asked_row, rows       # of a chunk: its first row, what its worker is asked for, the rows of the batch
    uint32_t samples                    # of the whole batch; 0 in its further chunks
    uint64_t seed, batch


cdef class Window:
    cdef int count, batches             # tasks, and batches that they are of
    cdef given_task *given              # for each task
    cdef int *order                     # the tasks in the order in which they are taken: batch by batch
    cdef int *head                      # of each batch: its first task
    cdef uint32_t *samples              # of each batch
    cdef list written, listed           # for each task: what is written for its worker, and its rows or None

    cdef void use(self, int at, int payload, uint64_t batch) noexcept      # a batch of it has this payload, this number
