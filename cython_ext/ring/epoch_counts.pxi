"""The numbers of one epoch (batches drawn, opened, taken and handed out), and whether the epoch is over.
Each number has one owner.

A batch is drawn (the sampler gave its index), opened (workers may make it), taken (out of the ring) and handed out (the
user has it).
"""

from cpython.pythread cimport PyThread_get_thread_ident

from atomics cimport RING_NO_EPOCH


@cython.final
cdef class Progress:
    """Counts the batches that were handed out, with the errors in a batch's place.

    It outlives the iterator that counts with it.  It may be read at any time, also in a signal handler.

    Args:
        workers: for streams, each of which has an order of its own: how many workers; otherwise 0.
    """
    cdef readonly uint64_t batches      # of the epoch, handed out
    cdef readonly uint64_t samples      # in these
    cdef readonly list of_workers       # of streams: batches of each worker that were handed out
    cdef readonly list ended            # of streams: whether each worker has nothing more to give
    cdef public list states             # of streams: the state of each then; None: the ring's cells have them
    cdef readonly int latest            # of streams: the worker whose batch was handed out last; -1: none yet

    def __init__(self, int workers=0):
        self.of_workers, self.ended = [0] * workers, [False] * workers
        self.latest = -1

    cpdef int add(self, uint32_t samples, int worker=0) except -1:
        """Count another batch that was handed out, of this number of samples."""
        if self.of_workers:
            self.states = None      # these states are no longer current
            self.of_workers[worker] += 1
            self.latest = worker
        self.batches += 1
        self.samples += samples
        return 0

    cdef int end(self, int worker) except -1:
        """This worker has nothing more to give."""
        if self.ended:
            self.states = None
            self.ended[worker] = True
        return 0

    cdef bint has_ended(self) noexcept:
        """Of streams: whether no worker has anything more to give."""
        cdef object ended
        for ended in self.ended:
            if ended is False:
                return False
        return len(self.ended) > 0

    def copy(self):
        """A snapshot, for a thread that passes the batches on later."""
        cdef Progress other = Progress.__new__(Progress)
        other.batches, other.samples = self.batches, self.samples
        other.latest = self.latest
        other.of_workers, other.ended, other.states = self.of_workers.copy(), self.ended.copy(), self.states
        return other


cdef enum:
    # what is kept of an index without workers, until its batch is handed out
    PENDING_THREAD
    PENDING_INDEX
    PENDING_BEFORE                                      # how many samples were drawn before it
    PENDING_IS_MADE                                     # whether its batch is being made


cdef class EpochCounts:
    """How far an epoch is.

    Args:
        workers: for streams, each of which has an order of its own: how many workers; otherwise 0.
    """
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
    cdef readonly uint64_t taken        # batches that were taken and read, or have an error in their place
    cdef object ready                   # a batch that was taken and is not handed out yet
    cdef readonly uint32_t ready_samples    # how many are in it
    cdef int ready_worker               # which worker made it
    cdef readonly Progress handed_out
    cdef public bint stopped            # next() has raised StopIteration at the epoch's end

    def __init__(self, int workers=0):
        self.handed_out = Progress(workers)
        self.drawn, self.ready, self.last_worker, self.dataset_epoch = nothing, nothing, -1, RING_NO_EPOCH
        self.waiting, self.pending, self.later = [], [], []

    cdef bint is_under_way(self) noexcept:
        """Whether a batch was opened and is not taken."""
        return self.taken != self.opened

    cdef bint is_over(self) noexcept:
        """Whether nothing is left to draw, and all opened batches were handed out.

        It is computed, never set.  A closed or interrupted iterator gives no more batches either, but its epoch is not
        over.
        """
        if self.ready is not nothing or self.is_under_way():
            return False
        if self.waiting or self.pending:
            return False
        if self.source is not None and self.drawn is nothing:
            if self.source.last == EXHAUSTED:
                return True
            if self.source.last == RAISED:      # torch's loader ends too if the sampler raises after the last batch
                return True
        return self.handed_out.has_ended()    # the indices of streams have no end

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
        """The dataset's number when this index was drawn."""
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

    cdef list of_this_thread(self, bint is_made):
        """This thread's first index that nobody makes a batch of, or its last one of which that is under way."""
        cdef unsigned long me = PyThread_get_thread_ident()
        cdef list mine, last = None
        for mine in self.pending:
            if mine[PENDING_THREAD] == me and mine[PENDING_IS_MADE] == is_made:
                last = mine
                if not is_made:
                    break
        return last

    def index(self, count):
        """The index of this thread's next batch, which stays the same until make().  One thread at a time may call.

        Args:
            count: Returns how many samples are made of an index.

        Raises:
            StopIteration: the source has no more.
        """
        cdef list mine = self.of_this_thread(False)
        cdef object drawn
        cdef uint64_t samples
        if mine is None:
            drawn = self.source.draw(self.opened + len(self.pending))
            if drawn is nothing:
                self.stopped = True
                raise StopIteration
            mine = [PyThread_get_thread_ident(), drawn, None, False]
            self.pending.append(mine)                   # first, because a signal's handler may raise in count()
        if mine[PENDING_BEFORE] is None:
            samples = count(mine[PENDING_INDEX])
            mine[PENDING_BEFORE] = self.asked
            self.asked += samples
        return mine[PENDING_INDEX]

    def make(self):
        """Say that the batch of this thread's index is made from now on.  The dataset may ask for the next one meanwhile.

        Returns:
            For leave() or hand_out().
        """
        cdef list mine = self.of_this_thread(False)
        if mine is not None:
            mine[PENDING_IS_MADE] = True
        return mine

    def leave(self, list mine) -> None:
        """Leave that index pending: an interrupt has broken off the making of its batch."""
        if mine is not None:
            mine[PENDING_IS_MADE] = False

    @property
    def before(self) -> int:
        """How many samples were drawn before the index of which this thread makes a batch."""
        cdef list mine = self.of_this_thread(True)
        return self.asked if mine is None else mine[PENDING_BEFORE]

    def hand_out(self, list mine, int samples) -> None:
        """Count the batch of that index, or the error in its place, as handed out.  A second call does nothing.

        Args:
            mine: what make() returned.
            samples: how many are in it.
        """
        cdef Py_ssize_t k
        for k in range(len(self.pending)):
            if self.pending[k] is mine:
                del self.pending[k]
                self.opened += 1
                self.samples += samples
                self.taken += 1
                self.handed_out.add(samples)
                return
