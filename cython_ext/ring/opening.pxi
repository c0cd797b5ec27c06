"""How the trainer opens batches, that is, gives their indices to workers: whether there is room, and whom it wakes.
It also begins epochs, and dismisses or stops workers.
"""

import pickle


from atomics cimport RING_ANY, ring_entry, ring_open, ring_raise, ring_ring, ring_toll
from shmloader.core.ring cimport Meter, Ring, Sequences, Slots, Turns, check_index


cdef extern from "Python.h":
    Py_ssize_t PyObject_LengthHint(object o, Py_ssize_t default) except -1


cdef class OpeningSide(Ring):
    """The part of TrainerSide that opens batches, of one epoch after another.

    Args:
        spare: payloads that may be lent at once.
        in_order: whether batches are taken in their order, or as they become ready; then none is cut into chunks.
        dumps: pickles tasks.  A task may be read more than once: by the successor of a dead worker, and for an error.
            So nothing in it may be passed beside the pickle, as multiprocessing passes tensors.
        meter: adds up the measurements; None: it makes its own.
    """
    cdef readonly Sequences sequences   # those in flight
    cdef readonly Slots slots           # which payloads are free, and who has the others
    cdef readonly Turns turns           # measures them
    cdef readonly EpochCounts current   # the epoch whose batches are taken and handed out
    cdef readonly int under_way         # batches opened and not taken
    cdef public int most                # how many may be; never more than `batches`
    cdef readonly uint64_t epoch        # how many epochs were begun before the one that was begun last
    cdef readonly bint stopped          # workers were asked to leave
    cdef public int window              # how many batches are opened together: NOTE [ Windows ]; 1: one by one
    cdef bint batched                   # whether a task is the indices of a batch; if not, it is one sample's
    cdef Cells cell_owners              # which sequence or worker has each cell
    cdef bint begun                     # whether any epoch was
    cdef bint in_order
    cdef TaskWriter tasks
    cdef int next_bell                  # where ring_one() begins

    def __cinit__(self, segment, spin, int spare, bint in_order, dumps=pickle.dumps, Meter meter=None):
        self.in_order, self.tasks = in_order, TaskWriter(self, dumps)
        self.batched, self.current, self.most, self.window = True, EpochCounts(), self.batches, 1
        self.cell_owners = Cells(self)
        meter = Meter(self.workers) if meter is None else meter
        self.sequences, self.slots = Sequences(self, in_order), Slots(self, spare, meter)
        self.turns = Turns(meter, self, in_order)
        self.turns.slots = self.slots

    # ---------------------------------------------------------------------------------------------- epochs

    def begin_epoch(self, EpochCounts epoch=None, bint batched=True, dataset_epoch=None, uint64_t seed=0) -> None:
        """From now on open, take and hand out the batches of this epoch; none of another one may be under way.

        Args:
            epoch: counts them.
            batched: whether a task is the indices of a batch; if not, it is one sample's.
            dataset_epoch: what the dataset has from set_epoch(), until epoch.dataset_has() names another; None: nothing.
            seed: the epoch's, which bad samples are replaced by.
        """
        self.mapping.check_open()
        self.cell_owners.begin()
        self.batched = batched
        self.current = epoch = EpochCounts() if epoch is None else epoch
        if dataset_epoch is not None:
            epoch.dataset_epoch = dataset_epoch
        self.epoch += self.begun
        self.begun, epoch.first = True, self.sequences.next_open
        self.header.epoch_seed = seed

    cdef int forget_epoch(self) except -1:
        """Keep the numbers of the epoch, and nothing of the user's.

        A batch that the user keeps refers to this object, and must not keep the dataset and the sampler alive.
        """
        cdef EpochCounts last = self.current, numbers = EpochCounts()
        numbers.opened, numbers.samples, numbers.taken = last.opened, last.samples, last.taken
        numbers.handed_out, numbers.stopped, numbers.ready = last.handed_out, last.stopped, last.ready
        self.current = numbers
        return 0

    # ---------------------------------------------------------------------------------------------- tasks

    cpdef bint has_room(self, int chunks=1) except -1:
        """Whether a batch that is cut into this many chunks can be opened."""
        self.mapping.check_open()
        return self.under_way < self.batches and self.sequences.in_flight + chunks <= self.entries

    cdef int samples_of(self, task) except -1:
        """How many samples a task is of.  What has no length counts as one."""
        if type(task) is list:
            return <int>PyList_GET_SIZE(task)
        if type(task) is int or not self.batched:
            return 1
        return <int>PyObject_LengthHint(task, 1)

    cdef int pass_over(self, task) except -1:
        """Count a batch that cannot be opened: an error was raised in its place.  Streams have no such batches."""
        cdef uint32_t samples = self.samples_of(task)
        cdef EpochCounts epoch = self.current
        if not epoch.handed_out.of_workers:
            epoch.handed_out.add(samples)
            epoch.opened += 1
            epoch.samples += samples
            epoch.taken += 1
        return 0

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
        cdef given_task given = given_task(worker, payload, 1, 0, 0, 0, samples, seed, self.current.opened - 1)
        self.give(&given)

    def open_chunks(self, list workers, list tasks, uint64_t seed=0) -> None:
        """Give the next batch in chunks to workers, or to ANY.

        It is opened whole or not at all.  So whatever can fail comes first, and so does whatever calls Python, because
        a signal handler may raise there.

        Args:
            workers: the worker of each chunk.
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
        cdef uint64_t batch = self.current.opened - 1
        cdef given_task given
        for k in range(chunks):
            given = given_task(workers[k], payload, 0 if k else chunks, row, row, rows, 0 if k else rows, seed, batch)
            self.give(&given)
            row += <uint32_t>counts[k]

    def has_room_for(self, int batches, int chunks) -> bool:
        """Whether a window of this many batches, cut into this many chunks, can be opened."""
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

        As in open_chunks(), either all are opened or none.

        Args:
            tasks: in the order in which they are to be made.  Each has four parts: the batch's place in the window, the
                worker, the indices, and the list of their rows in the batch (None: they are the whole batch).
            samples: of each batch.
            seeds: of each batch.
        """
        cdef Window window = Window(tasks, samples, seeds, self.workers)
        cdef uint64_t first = self.sequences.next_open, before = self.sequences.last, opened = self.current.opened
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
        cdef EpochCounts epoch = self.current
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
        cdef EpochCounts epoch = self.current
        cdef uint32_t cell = self.cell_owners.give()   # check_may_open() has looked: there is one
        entry.ask.payload, entry.ask.seed, entry.ask.row = task.payload, task.seed, task.asked_row
        entry.ask.rows, entry.ask.batch = task.rows, <uint32_t>task.batch
        entry.ask.epoch, entry.ask.cell = <uint32_t>self.epoch, cell
        entry.ask.dataset_epoch = epoch.number_of(task.batch)
        self.sequences.opened(task.worker, task.payload, task.chunks, task.row, task.rows, task.batch, task.samples,
                              cell, now())
        ring_open(entry, sequence, task.worker)
        if task.worker == RING_ANY:
            self.ring_one()
        else:
            ring_ring(&self.worker[task.worker].bell)
        return 0

    cdef void ring_one(self) noexcept nogil:
        """Wake one worker that sleeps.  If none does, all bells are rung, and a worker looks again before it sleeps."""
        cdef int k, worker
        for k in range(self.workers):
            worker = (self.next_bell + k) % self.workers
            if ring_ring(&self.worker[worker].bell):
                self.next_bell = worker + 1
                return

    def dismiss(self, int worker) -> None:
        """Let `worker` leave once nothing more is open for it."""
        self.mapping.check_open()
        check_index("worker", worker, self.workers)
        ring_raise(&self.worker[worker].dismissed)
        ring_ring(&self.worker[worker].bell)

    def stop(self) -> None:
        """End every wait of every worker, now.  On a closed ring nobody waits, so this does nothing."""
        cdef int k
        if self.mapping.closed:
            return
        self.stopped = True
        ring_raise(&self.header.stop)
        for k in range(self.workers):
            ring_toll(&self.worker[k].bell)
