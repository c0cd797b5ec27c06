"""The numbers of one epoch (batches drawn, opened, taken and handed out), and whether the epoch is over.
Each number has one owner.

A batch is drawn (the sampler gave its index), opened (workers may make it), taken (out of the ring) and handed out (the
user has it).  The conductor draws and opens; the reader takes and hands out.  Today both are the trainer, in one thread
at a time.  Their numbers are apart because they may be two processes one day.  The conductor reads two of the reader's
numbers: `taken`, and which streams have ended.  The reader reads two of the conductor's: `opened`, and whether the
source is exhausted.
"""

from cpython.pythread cimport PyThread_get_thread_ident

from atomics cimport RING_NO_EPOCH


cdef class Reading:
    """How far a reader is in an epoch.

    Args:
        delivered: counts what is handed out.
    """

    def __cinit__(self, Progress delivered):
        self.delivered, self.ready = delivered, nothing


cdef class EpochCounts:
    """How far an epoch is.

    Args:
        numbered: whether batches come out of order, so that their numbers count.
        workers: for streams, each of which has an order of its own: how many workers; otherwise 0.
    """

    def __init__(self, bint numbered=False, int workers=0):
        self.reading = Reading(Progress(numbered, workers))
        self.drawn, self.last_worker, self.dataset_epoch = nothing, -1, RING_NO_EPOCH
        self.waiting, self.pending, self.later = [], {}, []

    cdef bint is_under_way(self) noexcept:
        return self.reading.taken != self.opened

    cdef bint is_over(self) noexcept:
        cdef Reading reading = self.reading
        if reading.ready is not nothing or self.is_under_way():
            return False
        if self.waiting or self.pending:
            return False
        if self.source is not None and self.drawn is nothing:
            if self.source.last == EXHAUSTED:
                return True
            if self.source.last == RAISED:      # torch's loader ends too if the sampler raises after the last batch
                return True
        return reading.delivered.has_ended()    # the indices of streams have no end

    # ------------------------------------------------------------------------- the dataset's: NOTE [ Numbers of copies ]

    def dataset_has(self, number) -> None:
        """From the next draw on, or from the one under way, the dataset has this number from set_epoch(); None: none."""
        cdef int64_t epoch = RING_NO_EPOCH if number is None else number
        cdef uint64_t draw = self.opened + <uint64_t>(len(self.waiting) + len(self.pending) + (self.drawn is not nothing))
        if not draw:
            self.dataset_epoch = epoch
            self.later.clear()
        elif epoch != self.number_of(draw):
            self.later.append((draw, epoch))

    cdef int64_t number_of(self, uint64_t draw) except? -1:
        cdef Py_ssize_t k
        for k in range(len(self.later) - 1, -1, -1):
            if self.later[k][0] <= draw:
                return self.later[k][1]
        return self.dataset_epoch

    def dataset_epoch_of(self, uint64_t draw):
        """The number that the dataset had when this index was drawn, counted from 0; None: none."""
        cdef int64_t epoch = self.number_of(draw)
        return None if epoch == RING_NO_EPOCH else epoch

    # ---------------------------------------------------------------------------------------------- without workers

    def index(self, count):
        """The index of this thread's next batch, which stays the same until hand_out().  One thread at a time may call.

        Args:
            count: Returns how many samples are made of an index.

        Raises:
            StopIteration: the source has no more.
        """
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef list mine = self.pending.get(me)
        cdef object drawn
        cdef uint64_t samples
        if mine is None:
            drawn = self.source.draw(self.opened + len(self.pending))
            if drawn is nothing:
                self.reading.ended = True
                raise StopIteration
            mine = self.pending[me] = [drawn, None]     # first, because a signal's handler may raise in count()
        if mine[1] is None:
            samples = count(mine[0])
            mine[1] = self.asked
            self.asked += samples
        return mine[0]

    @property
    def before(self) -> int:
        """How many samples were drawn before this thread's index."""
        cdef list mine = self.pending.get(PyThread_get_thread_ident())
        return self.asked if mine is None else mine[1]

    def hand_out(self, int samples) -> None:
        """Count the batch of that index, or the error in its place, as handed out.

        Args:
            samples: how many are in it.
        """
        self.pending.pop(PyThread_get_thread_ident(), None)
        self.opened += 1
        self.samples += samples
        self.reading.taken += 1
        self.reading.delivered.add(samples)
