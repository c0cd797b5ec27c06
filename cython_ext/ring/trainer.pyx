# cython: language_level=3, boundscheck=False, wraparound=False
"""The trainer's side of the ring."""

import pickle

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_SIZE
from libc.errno cimport EINTR, ETIMEDOUT
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.time cimport timespec
from posix.unistd cimport getpid

from atomics cimport (
    RING_ANY, RING_MAGIC, RING_READY, RING_VERSION, ring_announce, ring_entry, ring_note_revoked,
    ring_note, ring_once_32, ring_open, ring_raise, ring_revoke, ring_ring, ring_sleep, ring_toll,
)
from clock cimport now, until
from shmloader.core.epoch_counts cimport EpochCounts, Reading
from shmloader.core.free_cells cimport Cells
from shmloader.core.lease cimport Lease
from shmloader.core.private_view cimport PrivateView
from shmloader.core.readers cimport Readers
from shmloader.core.ring cimport (
    FILLED, KEPT, SKIPPED, SKIPPED_KEPT, Ring, check_index,
)
from shmloader.core.sequences cimport Sequences, ring_given
from shmloader.core.free_slots cimport Slots
from shmloader.core.figures cimport GROWN
from shmloader.core.task_writer cimport TaskWriter
from shmloader.core.turns cimport Meter, Turns
from shmloader.core.window cimport Window, given_task
from ring.spin cimport spin_budget, spin_learn, spin_once


cdef extern from "Python.h":
    Py_ssize_t PyObject_LengthHint(object o, Py_ssize_t default) except -1


@cython.final
cdef class TrainerSide(Ring):
    """What the trainer does: opens sequences, waits for them, lends their payloads.  One thread at a time.

    Args:
        spare: payloads that may be lent at once.
        in_order: whether batches are taken in their order, or as they become ready; then none is cut into chunks.
        dumps: pickles tasks.  A task may be read more than once: by who takes a dead worker's place, and to name it in
            an error.  So nothing in it may be passed beside the pickle, as multiprocessing passes tensors.
        meter: what is measured is added to; None: one of its own.
    """

    def __cinit__(self, segment, spin, int spare, bint in_order, dumps=pickle.dumps, Meter meter=None):
        self.in_order, self.tasks = in_order, TaskWriter(self, dumps)
        self.batched, self.current, self.most, self.window = True, EpochCounts(), self.batches, 1
        self.cell_owners = Cells(self)
        meter = Meter(self.workers) if meter is None else meter
        self.sequences, self.slots = Sequences(self, in_order), Slots(self, spare, meter)
        self.turns = Turns(meter, self, in_order)
        self.turns.slots = self.slots
        self.grown = <uint64_t *>calloc(self.payloads, sizeof(uint64_t))
        if self.grown == NULL:
            raise MemoryError()

    def format(self, bytes label=b"") -> None:
        """Write the header of a fresh segment, before any worker sees it.

        Args:
            label: says to who looks on what the ring is of.
        """
        self.mapping.check_open()
        self.header.area_at, self.header.area_stride = self.area_at, self.area_stride
        self.header.slot_at, self.header.slot_stride = self.slot_at, self.slot_stride
        self.header.batches, self.header.started_at, self.header.trainer = self.batches, now(), getpid()
        label = label[:sizeof(self.header.label) - 1]
        memcpy(self.header.label, PyBytes_AS_STRING(label), PyBytes_GET_SIZE(label))
        self.header.version = RING_VERSION
        self.header.workers, self.header.entries = self.workers, self.entries
        self.header.payloads, self.header.in_order = self.payloads, self.in_order
        self.header.readers = self.readers is not None
        self.header.magic = RING_MAGIC

    def __dealloc__(self):
        free(self.grown)

    # ---------------------------------------------------------------------------------------------- tasks

    cpdef bint has_room(self, int chunks=1) except -1:
        """Whether a batch of so many chunks can be opened."""
        self.mapping.check_open()
        return (self.under_way < self.batches and self.sequences.in_flight + chunks <= self.entries
                and (self.readers is None or self.readers.have_room(chunks, self.batches)))

    cdef bint may_open(self) noexcept:
        """Where others read."""
        if self.under_way >= self.most:
            return False
        self.wants_room = not self.readers.have_room(1, self.most)
        return not self.wants_room

    cdef bint can_go_on(self) noexcept:
        if self.sequences.find_ready():
            return True
        return self.wants_room and self.readers.have_room(1, self.most)

    def read_elsewhere(self, bint reads) -> Readers:
        """Let other processes read the batches too: NOTE [ Readers ].  Before format().

        Args:
            reads: whether this process does; then it sees what lies in the payloads through a view of its own.
        """
        self.mapping.check_open()
        self.readers = Readers(self, self.sequences, self.slots, reads)
        self.slots.share(self)
        if reads:
            self.view = PrivateView(self, self.segment.fd)
            self.lent_from = self.view.base
        return self.readers

    def begin_epoch(self, EpochCounts epoch=None, bint batched=True, dataset_epoch=None, uint64_t seed=0,
                    bint drops=False) -> None:
        """From now on open, take and hand out the batches of this epoch; none of another one may be under way.

        Args:
            epoch: counts them.
            batched: whether a task is the indices of a batch; if not, it is one sample's.
            dataset_epoch: for the datasets' set_epoch(); None: it is not called.
            seed: the epoch's, which bad samples are replaced by.
            drops: whether the epoch before it was begun early, and is dropped: workers undo what they drew for it.
        """
        self.mapping.check_open()
        self.cell_owners.begin()
        self.batched = batched
        self.current, self.next = EpochCounts() if epoch is None else epoch, None
        self.enrol(self.current, dataset_epoch, seed, drops)

    def begin_next(self, EpochCounts epoch, dataset_epoch=None, uint64_t seed=0) -> None:
        """From now on open the batches of this epoch, while those of the current one are taken and handed out.

        All of the current one's are open, and batches come in order: so of two batches under way the first one is of
        the current epoch while any is.  The other arguments are as in begin_epoch().
        """
        self.mapping.check_open()
        self.enrol(epoch, dataset_epoch, seed, False)
        self.next = epoch

    def turn(self) -> None:
        """The next epoch is the current one from now on.  Nothing of the one before may be under way."""
        if self.next is not None:
            self.current, self.next = self.next, None

    def drop_next(self) -> None:
        """The ring is about to be closed, so nobody will ask for the next epoch."""
        self.next = None

    cdef int enrol(self, EpochCounts epoch, dataset_epoch, uint64_t seed, bint drops) except -1:
        if dataset_epoch is not None:
            epoch.dataset_epoch = dataset_epoch
        self.epoch += self.begun
        self.begun, epoch.serial, epoch.first = True, self.epoch, self.sequences.next_open
        self.header.epoch_seed[self.epoch & 1], self.header.epoch_drops[self.epoch & 1] = seed, drops
        return 0

    cdef int samples_of(self, task) except -1:
        """How many samples a task is of.  What has no length counts as one."""
        if type(task) is list:
            return <int>PyList_GET_SIZE(task)
        if type(task) is int or not self.batched:
            return 1
        return <int>PyObject_LengthHint(task, 1)

    cdef int hand_out(self) except -1:
        cdef Reading reading = self.current.reading
        reading.delivered.count(reading.number, reading.samples, reading.worker)
        return self.keep_state()

    cdef int pass_over(self, task) except -1:
        """Count a batch that cannot be opened: an error was raised in its place.  Streams have no such batches."""
        cdef uint32_t samples = self.samples_of(task)
        cdef EpochCounts epoch = self.current
        if not epoch.reading.delivered.of_workers:
            epoch.reading.delivered.count(epoch.opened, samples, 0)
            epoch.opened += 1
            epoch.samples += samples
            epoch.reading.taken += 1
        return 0

    cdef int stream_ended(self, int worker) except -1:
        self.current.reading.delivered.end(worker)
        return self.keep_state()

    cdef int keep_state(self) except -1:
        """What a stream said behind the batch that was taken last is the latest that is known of it: NOTE [ Cells ]."""
        return self.cell_owners.keep(self.current.reading.worker)

    def states(self) -> list:
        """What each worker's stream said of itself behind the last batch of it that was handed out, or at its end.

        Returns:
            For each worker what it said; None where it said nothing; b"" where there was no memory to write it down.
        """
        self.mapping.check_open()
        return self.cell_owners.read()

    def open(self, int worker, task, uint64_t seed=0) -> None:
        """Give the next batch to `worker`, and wake it.

        Args:
            worker: index of the worker that alone may claim it, or ANY.
            task: an index, a list of indices, or anything else that a sampler gave, which is pickled.
            seed: of the batch.

        Raises:
            MemoryError: there are no pages for the task.
        """
        cdef uint32_t samples = self.samples_of(task)
        self.check_may_open(worker, 1)
        self.tasks.write(self.sequences.next_open, task)
        cdef int payload = self.begin_batch(worker, samples)
        cdef given_task given = given_task(worker, payload, 1, 0, 0, 0, samples, seed, self.opens().opened - 1)
        self.give(&given)

    def open_chunks(self, list workers, list tasks, uint64_t seed=0) -> None:
        """Give the next batch in chunks to workers, or to ANY.

        It is opened whole or not at all, so all that can fail comes first, and all that calls Python, where a signal
        handler may raise.

        Args:
            workers: whose each chunk is.
            tasks: the indices of each chunk's rows, a list each.
            seed: of the batch.
        """
        cdef int k, chunks = len(tasks)
        cdef uint32_t row = 0, rows = sum([len(task) for task in tasks])
        cdef list counts = [len(task) for task in tasks]
        for k in range(chunks):
            self.check_may_open(workers[k], chunks)
            self.tasks.write(self.sequences.next_open + k, tasks[k])
        cdef int payload = self.begin_batch(workers[0], rows)
        cdef uint64_t batch = self.opens().opened - 1
        cdef given_task given
        for k in range(chunks):
            given = given_task(workers[k], payload, 0 if k else chunks, row, row, rows, 0 if k else rows, seed, batch)
            self.give(&given)
            row += <uint32_t>counts[k]

    def has_room_for(self, int batches, int chunks) -> bool:
        """Whether a window of so many batches, cut into so many chunks, can be opened."""
        cdef int k
        self.mapping.check_open()
        if self.under_way + batches > self.batches or chunks > self.entries:
            return False
        for k in range(chunks):
            if self.sequences.busy[(self.sequences.next_open + k) % self.entries]:
                return False
        return True

    def open_window(self, list tasks, list samples, list seeds) -> None:
        """Give the next batches to workers, together: NOTE [ Windows ].

        They are opened all or none, as in open_chunks().

        Args:
            tasks: in the order in which they are to be made: the batch's place in the window, the worker, the indices,
                and the rows that these have in the batch; None: they are the whole batch.
            samples: of each batch.
            seeds: of each batch.
        """
        cdef Window window = Window(tasks, samples, seeds, self.workers)
        cdef uint64_t first = self.sequences.next_open, before = self.sequences.last, opened = self.opens().opened
        cdef int k
        if not self.has_room_for(window.batches, window.count):
            raise RuntimeError(f"the ring has no room for {window.batches} batches in {window.count} chunks: "
                               f"{self.under_way} of {self.batches} batches are under way, in "
                               f"{self.sequences.in_flight} of {self.entries} entries")
        self.cell_owners.check_room(window.count)
        for k in range(window.count):
            self.tasks.write(first + k, window.written[k])
        # Nothing behind this line calls Python.
        for k in range(window.batches):
            window.use(k, self.begin_batch(window.given[window.head[k]].worker, window.samples[k]), opened + k)
        for k in range(window.count):
            self.sequences.listed[(first + k) % self.entries] = window.listed[k]
            self.give(&window.given[k])
        self.sequences.take_by(&window.order[0], window.count, before)

    cdef EpochCounts opens(self):
        """The epoch whose batches are opened."""
        return self.current if self.next is None else self.next

    cdef int check_may_open(self, int worker, int chunks) except -1:
        if not self.has_room(chunks):
            raise RuntimeError(f"the ring has no room for {chunks} more: {self.sequences.in_flight} of {self.entries} "
                               f"entries are in flight, for {self.under_way} batches of {self.batches} at most")
        self.cell_owners.check_room(chunks)
        return 0 if worker == RING_ANY else check_index("worker", worker, self.workers)

    cdef int begin_batch(self, int worker, uint32_t samples) except -1:
        """Count a batch whose tasks are written, and choose its payload.  Nothing of it calls Python.

        Args:
            worker: the first one that it is for.
            samples: of the batch.
        """
        cdef EpochCounts epoch = self.opens()
        cdef int payload = self.slots.pick()
        self.under_way += 1
        epoch.opened += 1
        epoch.samples += samples
        epoch.last_worker = worker
        self.turns.opened()
        return payload

    cdef int give(self, given_task *task) except -1:
        """Open the next sequence, whose task is written: a batch, or one of its chunks.  Nothing of it calls Python."""
        cdef uint64_t sequence = self.sequences.next_open
        cdef ring_entry *entry = &self.entry[sequence % self.entries]
        cdef EpochCounts epoch = self.opens()
        cdef uint32_t cell = self.cell_owners.give()   # check_may_open() has looked: there is one
        entry.ask.payload, entry.ask.seed, entry.ask.row = task.payload, task.seed, task.asked_row
        entry.ask.rows, entry.ask.batch = task.rows, <uint32_t>task.batch
        entry.ask.epoch, entry.ask.dataset_epoch, entry.ask.cell = <uint32_t>epoch.serial, epoch.dataset_epoch, cell
        self.sequences.opened(task.worker, task.payload, task.chunks, task.row, task.rows, task.batch, task.samples,
                              cell, now())
        if self.readers is not None:
            self.readers.open(&self.sequences.given[sequence % self.entries], epoch.serial)
        ring_open(entry, sequence, task.worker)
        if task.worker == RING_ANY:
            self.ring_one()
        else:
            ring_ring(&self.bells[task.worker].bell)
        return 0

    cdef void ring_one(self) noexcept nogil:
        """Wake one worker that sleeps; where none does, all bells are rung, and who lies down looks again."""
        cdef int k, worker
        for k in range(self.workers):
            worker = (self.next_bell + k) % self.workers
            if ring_ring(&self.bells[worker].bell):
                self.next_bell = worker + 1
                return

    def dismiss(self, int worker) -> None:
        """Let `worker` leave once nothing more is open for it."""
        self.mapping.check_open()
        check_index("worker", worker, self.workers)
        ring_raise(&self.worker[worker].dismissed)
        ring_ring(&self.bells[worker].bell)

    def stop(self) -> None:
        """End every wait of every worker, now.  Of a closed ring there are none."""
        cdef int k
        if self.mapping.closed:
            return
        self.stopped = True
        ring_raise(&self.header.stop)
        for k in range(self.workers):
            ring_toll(&self.bells[k].bell)

    # ------------------------------------------------------------------------------------------- delivery

    def ready(self) -> bool:
        """Whether the next batch can be taken; not while there is an alarm to look after."""
        self.mapping.check_open()
        return not self.alarmed and self.sequences.find_ready()

    def wait(self, double seconds=-1) -> bool:
        """Wait until the next batch can be taken; false when `seconds` have passed or an alarm was raised.

        Spins where that cannot hold up a worker, then sleeps on the ready bell, without the GIL.  Python's signal
        handlers run between sleeps, so Ctrl-C and the SIGCHLD handler work while a batch is late.
        """
        if self.mapping.closed or self.alarmed:
            return False
        if self.sequences.find_ready() or (self.wants_room and self.can_go_on()):
            return True
        self.inside += 1
        try:
            return self.wait_until(seconds)
        finally:
            self.inside -= 1
            self.drop_words()

    cdef int wait_until(self, double seconds) except -1:
        cdef timespec deadline
        cdef bint limited = until(seconds, &deadline)
        cdef int error = 0, lost = 0, k = 0, budget = spin_budget(&self.spin)
        cdef uint32_t seen
        if budget:
            with nogil:
                while k < budget and not self.sequences.find_ready() and spin_once(&self.spin):
                    k += 1
            spin_learn(&self.spin, k, self.sequences.find_ready())
        while not self.mapping.closed and not (self.sequences.find_ready() or (self.wants_room and self.can_go_on())):
            if self.alarmed or error == ETIMEDOUT:
                return False
            if self.wants_room:     # what has_free() sorts is under the GIL
                error = self.sleep_for_room(&deadline if limited else NULL)
                if error == EINTR:
                    PyErr_CheckSignals()
                continue
            with nogil:
                seen = ring_announce(&self.header.ready_bell)
                error = 0
                lost = self.sequences.lost()
                if not self.sequences.find_ready() and not self.alarmed and not lost:
                    error = ring_sleep(&self.header.ready_bell, seen, &deadline if limited else NULL)
            if lost and not self.alarmed and not self.mapping.closed:
                raise self.sequences.overwritten(lost - 1)
            if error == EINTR:
                PyErr_CheckSignals()
        return not self.mapping.closed

    cdef int sleep_for_room(self, timespec *deadline) except -1:
        """Sleep until a batch is ready, or can be opened."""
        cdef uint32_t seen = ring_announce(&self.header.ready_bell)
        cdef int error = 0, lost = self.sequences.lost()
        if lost and not self.alarmed:
            raise self.sequences.overwritten(lost - 1)
        if not self.can_go_on() and not self.alarmed:
            with nogil:
                error = ring_sleep(&self.header.ready_bell, seen, deadline)
        return error

    def alarm(self) -> None:
        """Make wait() return.  From the thread that watches the workers, when one has died.

        Nobody waits on a closed ring, and nothing is to be looked after there.
        """
        if self.mapping.closed:
            return
        self.alarmed = True
        ring_toll(&self.header.ready_bell)
        if self.readers is not None:
            ring_toll(&self.header.reader_bell)

    def clear_alarm(self) -> None:
        """The alarm was looked after."""
        if not self.mapping.closed:
            self.alarmed = False

    def take(self) -> Lease:
        """Take the next batch, which is ready; its payload is the caller's for as long as the lease lives.

        What its workers said of it is read before the next open(), which may be of the same entries.
        """
        self.mapping.check_open()
        if not self.sequences.find_ready():
            raise RuntimeError(f"sequence {self.sequences.next_take} is not ready")
        cdef ring_given *given = self.sequences.next_batch()
        cdef Reading reading = self.reading()
        cdef Lease lease = Lease.__new__(Lease)
        self.follow(given.payload)
        lease.hold(self, self.slots, self.sequences, given)
        if self.view is not None:
            self.view.lend(given.payload, lease.bytes)
        self.taken = given.sequence
        reading.number, reading.samples, reading.worker = given.batch, given.samples, given.worker
        self.cell_owners.took(given.cell, ring_once_32(&self.entry[given.sequence % self.entries].answer.state_size))
        self.turns.came()
        if lease.answers[0].outcome not in (SKIPPED, SKIPPED_KEPT):
            self.measure_taken(given, lease)
        self.under_way -= 1
        self.sequences.took(given.chunks)
        ring_note(&self.header.next_take, self.sequences.next_take)
        return lease

    cdef Reading reading(self):
        """Of the epoch whose batch is the next one that is taken, or the one that is being read."""
        return (self.current if self.next is None or self.current.is_under_way() else self.next).reading

    cdef void measure_taken(self, ring_given *given, Lease lease) noexcept:
        """Count what was taken: NOTE [ Figures ]."""
        cdef uint64_t before = self.grown[given.payload]
        self.turns.took(self.sequences, given, lease.used, self.slots.lent)
        self.slots.users(given.payload, self.turns.logged, self.turns.taken_at)
        if lease.room > before:
            self.turns.figures.at.amount[GROWN] += before > 0
            self.grown[given.payload] = lease.room

    def lend(self) -> Lease:
        """The next batch, taken once and given again until took(): a signal handler may raise while it is read."""
        if self.unread is None:
            self.unread = self.take()
        return self.unread

    def took(self) -> None:
        """The batch that lend() gave was read: what is left of it is its tensors' affair."""
        cdef Lease lease = self.unread
        cdef Reading reading = self.reading()
        if lease is None:
            return
        reading.taken += 1
        self.unread = None
        if lease.outcome in (KEPT, SKIPPED_KEPT):
            lease.retire()
        elif lease.failed:
            lease.release()

    # ---------------------------------------------------------------------------------------------- deaths

    def task(self, uint64_t sequence):
        """The task of a sequence that is in flight, as open() wrote it: an index, a list of indices, or a pickle."""
        cdef uint32_t kind = 0
        cdef uint64_t size = 0
        self.sequences.entry_of(sequence)
        self.measure(sequence, &kind, &size)
        return self.read_task(sequence, kind, size)

    def revoke(self, int worker) -> None:
        """Open again what `worker` had claimed.  It is dead and reaped; see NOTE [ Slot ring ]."""
        cdef uint64_t sequence
        cdef int k
        for sequence in self.sequences.holds(worker):
            ring_revoke(&self.entry[sequence % self.entries], sequence, worker,
                        self.sequences.given[sequence % self.entries].worker)
        self.turns.died()
        ring_note_revoked(self.header)
        for k in range(self.workers):
            ring_toll(&self.bells[k].bell)
        for sequence in self.sequences.of(worker, RING_READY):
            if ring_once_32(&self.entry[sequence % self.entries].answer.outcome) == KEPT:
                self.entry[sequence % self.entries].answer.outcome = FILLED  # who kept it is gone
        self.slots.died(worker)

    # ----------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Give all memory back but what is lent; that follows, payload by payload, as the leases die.

        The pages go at once even where a process that was forked meanwhile still maps them.  A forked child that
        closes its copy of the ring only unmaps it.
        """
        if self.mapping.closed:
            return
        self.unread = None
        self.forget_epochs()
        self.turns.close()
        self.mapping.closed = True
        if self.readers is not None:    # the memory goes with the last process that maps it
            if not self.readers.any_reads:
                self.slots.close()
            return
        if self.board is None:      # a crew's worker may look at the words until it has heard that they are gone
            self.mapping.give_back(0, self.slot_at)
        self.slots.close()
        if self.slots.lent:
            self.mapping.whole = False
            self.drop_words()

    cdef int forget_epochs(self) except -1:
        """Keep the numbers of the epoch, and nothing of the user's.

        A batch that the user keeps refers to this object, and must not keep the dataset and the sampler alive.
        """
        cdef EpochCounts last = self.current, numbers = EpochCounts()
        numbers.opened, numbers.samples, numbers.reading = last.opened, last.samples, last.reading
        self.current, self.next = numbers, None
        return 0

    cdef void drop_words(self) noexcept:
        """Unmap the words of a closed ring of which something is lent, once no thread is inside any more: one that is
        may be about to look at them once more."""
        if self.mapping.closed and not self.mapping.whole and not self.inside and not self.dropped:
            self.dropped = True
            self.mapping.unmap(0, self.slot_at)
