# cython: language_level=3
"""The tasks of a window, before its sequences are opened: NOTE [ Windows ] in ring.pxd."""

from libc.stdint cimport uint32_t, uint64_t

cdef struct given_task:
    int worker, payload
    int chunks                          # in the batch's first task: how many it is cut into; 0 in its further tasks
    uint32_t row, asked_row, rows       # of a chunk: its first row, the `row` that its worker gets, the batch's rows
    uint32_t samples                    # of the whole batch; 0 in its further chunks
    uint64_t seed, batch


cdef class Window:
    cdef int count, batches             # how many tasks and batches
    cdef given_task *given              # for each task
    cdef int *order                     # the tasks in the order in which they are taken: batch by batch
    cdef int *head                      # of each batch: its first task
    cdef uint32_t *samples              # of each batch
    cdef list written, listed           # for each task: the indices and rows for its worker; its rows, or None

    cdef void use(self, int at, int payload, uint64_t batch) noexcept      # give a batch its payload and number
