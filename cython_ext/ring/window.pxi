"""Checks a window, the batches that `group_by` opens together, before any of it is opened: all of it is opened or none.
NOTE [ Windows ] in ring.pxd.
"""


from shmloader.core.ring cimport LISTED, check_index

cdef struct given_task:
    int worker, payload
    int chunks                          # in the batch's first task: how many it is cut into; 0 in its further tasks
    uint32_t row, asked_row, rows       # of a chunk: its first row, the `row` that its worker gets, the batch's rows
    uint32_t samples                    # of the whole batch; 0 in its further chunks
    uint64_t seed, batch


@cython.final
cdef class Window:
    """The tasks of a window, as TrainerSide.open_window() gets them.  All that can fail, fails in this constructor.

    Args:
        tasks: in the order in which they are made.  Each has the batch's place in the window, the worker, the indices,
            and the rows of the batch that these fill; None: all.
        samples, seeds: of each batch.
        workers: how many there are.

    Raises:
        IndexError: there is no such batch, or no such worker.
        ValueError: a batch has no task; a task has another number of rows than of indices; or a batch has several
            tasks, and one of them lists no rows.
    """
    cdef int count, batches             # how many tasks and batches
    cdef given_task *given              # for each task
    cdef int *order                     # the tasks in the order in which they are taken: batch by batch
    cdef int *head                      # of each batch: its first task
    cdef uint32_t *samples              # of each batch
    cdef list written, listed           # for each task: the indices and rows for its worker; its rows, or None

    def __cinit__(self, list tasks, list samples, list seeds, int workers):
        cdef int k, at, n = 0
        cdef given_task *task
        self.count, self.batches = len(tasks), len(samples)
        self.given = <given_task *>calloc(self.count + 1, sizeof(given_task))
        self.order = <int *>calloc(self.count + 1, sizeof(int))
        self.head = <int *>calloc(self.batches + 1, sizeof(int))
        self.samples = <uint32_t *>calloc(self.batches + 1, sizeof(uint32_t))
        if self.given == NULL or self.order == NULL or self.head == NULL or self.samples == NULL:
            raise MemoryError()
        self.written, self.listed = [], []
        for at in range(self.batches):
            self.head[at], self.samples[at] = -1, samples[at]
        for k in range(self.count):
            batch, worker, indices, rows = tasks[k]
            check_index("batch", batch, self.batches)
            check_index("worker", worker, workers)
            at, task = batch, &self.given[k]
            task.worker, task.batch, task.seed = worker, batch, seeds[at]
            if rows is not None:
                if not rows or len(rows) != len(indices):
                    raise ValueError(f"a task of a window has {len(indices)} indices and {len(rows)} rows")
                task.row, task.rows, task.asked_row = rows[0], samples[at], LISTED
            elif self.head[at] >= 0:
                raise ValueError(f"batch {at} of a window has several tasks, and one that lists no rows")
            if self.head[at] < 0:
                self.head[at], task.samples = k, samples[at]
            self.given[self.head[at]].chunks += 1
            self.written.append(indices if rows is None else [*indices, *rows])
            self.listed.append(rows)
        for at in range(self.batches):
            if self.head[at] < 0:
                raise ValueError(f"batch {at} of a window has no task")
            for k in range(self.head[at], self.count):
                if self.given[k].batch == <uint64_t>at:
                    self.order[n] = k
                    n += 1

    def __dealloc__(self):
        free(self.given)
        free(self.order)
        free(self.head)
        free(self.samples)

    cdef void use(self, int at, int payload, uint64_t batch) noexcept:
        """Give a batch its payload and number."""
        cdef int k, n = 0
        cdef int chunks = self.given[self.head[at]].chunks
        while self.order[n] != self.head[at]:
            n += 1
        for k in range(n, n + chunks):
            self.given[self.order[k]].payload, self.given[self.order[k]].batch = payload, batch
