# cython: language_level=3
"""The trainer's side of the ring: it waits for batches, takes them, opens a dead worker's again, and gives memory back.
How it opens batches is in opening.pxi.

NOTE [ Sleep ]

Each process that sleeps on a bell calls PyErr_CheckSignals() before each sleep, whatever woke it up.  A signal may come
while it is awake, for example when it has just been woken and is waiting to get the GIL back.  Then there is no sleep
to interrupt, and CPython only notes the signal.  If the process slept again without this check, the handler would not
run until the next wake-up, and a Ctrl-C would do nothing.  One gap remains: a signal that arrives between this check
and the sleep is handled only after the next wake-up.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.time cimport timespec
from posix.unistd cimport getpid

from atomics cimport (
    RING_MAGIC, RING_READY, RING_VERSION, ring_announce, ring_entry, ring_note, ring_note_revoked, ring_once_32, ring_revoke,
    ring_sleep, ring_toll,
)
from clock cimport now, until
from shmloader.core.figures cimport GROWN
from shmloader.core.lease cimport Lease
from shmloader.core.ring cimport (
    FILLED, KEPT, SKIPPED, SKIPPED_KEPT, Mapping, ring_given, spin_budget, spin_learn, spin_once,
)

include "ring/indices.pxi"
include "ring/epoch_counts.pxi"
include "ring/free_cells.pxi"
include "ring/task_writer.pxi"
include "ring/window.pxi"
include "ring/opening.pxi"


@cython.final
cdef class TrainerSide(OpeningSide):
    """What the trainer does: opens sequences, waits for them, lends their payloads.  One thread at a time.

    Its arguments are OpeningSide's.
    """
    cdef object __weakref__             # a thread must not keep it: it knows the epoch, and so the user's dataset
    cdef readonly uint64_t taken        # the sequence that was taken last; the first one of that batch
    cdef readonly bint alarmed          # a worker died: wait() returns at once until it is looked after
    cdef Lease unread                   # what lend() gave, until took()
    cdef uint64_t *grown                # bytes that had pages in each payload when it was taken last
    cdef int inside                     # threads that may look at the words at any moment
    cdef bint dropped                   # the words are unmapped

    def __cinit__(self, *_):
        self.grown = <uint64_t *>calloc(self.payloads, sizeof(uint64_t))
        if self.grown == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.grown)

    def format(self, bytes label=b"") -> None:
        """Write the header of a fresh segment, before any worker sees it.

        Args:
            label: the dataset's name, for onlookers such as `shmloader top`.
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
        self.header.magic = RING_MAGIC

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
        if self.sequences.find_ready():
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
            PyErr_CheckSignals()
        while not self.mapping.closed and not self.sequences.find_ready():
            if self.alarmed or error == ETIMEDOUT:
                return False
            with nogil:
                seen = ring_announce(&self.header.ready_bell)
                error = 0
                lost = self.sequences.lost()
                if not self.sequences.find_ready() and not self.alarmed and not lost:
                    error = ring_sleep(&self.header.ready_bell, seen, &deadline if limited else NULL)
            if lost and not self.alarmed and not self.mapping.closed:
                raise self.sequences.overwritten(lost - 1)
            PyErr_CheckSignals()
        return not self.mapping.closed

    def alarm(self) -> None:
        """Make wait() return.  From the thread that watches the workers, when one has died.

        Nobody waits on a closed ring, and nothing is to be looked after there.
        """
        if self.mapping.closed:
            return
        self.alarmed = True
        ring_toll(&self.header.ready_bell)

    def clear_alarm(self) -> None:
        """The alarm was looked after."""
        if not self.mapping.closed:
            self.alarmed = False

    def take(self) -> Lease:
        """Take the next batch, which is ready; its payload is the caller's for as long as the lease lives.

        Its workers' descriptions are read before the next open(), which may use the same entries.
        """
        self.mapping.check_open()
        if not self.sequences.find_ready():
            raise RuntimeError(f"sequence {self.sequences.next_take} is not ready")
        cdef ring_given *given = self.sequences.next_batch()
        cdef EpochCounts epoch = self.current
        cdef Lease lease = Lease.__new__(Lease)
        self.follow(given.payload)
        lease.hold(self, self.slots, self.sequences, given)
        self.taken = given.sequence
        epoch.ready_samples, epoch.ready_worker = given.samples, given.worker
        self.cell_owners.took(given.cell, ring_once_32(&self.entry[given.sequence % self.entries].answer.state_size))
        self.turns.came()
        if lease.answers[0].outcome not in (SKIPPED, SKIPPED_KEPT):
            self.measure_taken(given, lease)
        self.under_way -= 1
        self.sequences.took(given.chunks)
        return lease

    cdef void measure_taken(self, ring_given *given, Lease lease) noexcept:
        """Count what was taken: NOTE [ Figures ]."""
        cdef uint64_t before = self.grown[given.payload]
        self.turns.took(self.sequences, given, lease.used, self.slots.lent)
        self.slots.users(given.payload, self.turns.logged, self.turns.taken_at)
        self.slots.seen(lease.bytes)
        if lease.room > before:
            self.turns.figures.at.amount[GROWN] += before > 0
            self.grown[given.payload] = lease.room

    def lend(self) -> Lease:
        """The next batch.  It stays the same until took(), because a signal handler may break off its reading."""
        if self.unread is None:
            self.unread = self.take()
        return self.unread

    def took(self) -> None:
        """Record that lend()'s batch was read.  From now on only its tensors keep its payload."""
        cdef Lease lease = self.unread
        if lease is None:
            return
        self.current.taken += 1
        self.unread = None
        if lease.outcome in (KEPT, SKIPPED_KEPT):
            lease.retire()
        elif lease.failed:
            lease.release()

    cdef int hand_out(self) except -1:
        """What was taken last is the user's now."""
        cdef EpochCounts epoch = self.current
        epoch.handed_out.add(epoch.ready_samples, epoch.ready_worker)
        return self.keep_state()

    cdef int stream_ended(self, int worker) except -1:
        """What was taken last is no batch."""
        self.current.handed_out.end(worker)
        return self.keep_state()

    cdef int keep_state(self) except -1:
        """From now on, the state after the batch that was taken last counts for its stream: NOTE [ Cells ]."""
        return self.cell_owners.keep(self.current.ready_worker)

    def states(self) -> list:
        """The state of each worker's stream after its last batch that was handed out, or at its end.

        Returns:
            The states, by worker.  None: it gave none.  b"": there was no memory to write it.
        """
        self.mapping.check_open()
        return self.cell_owners.read()

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
            ring_toll(&self.worker[k].bell)
        for sequence in self.sequences.of(worker, RING_READY):
            if ring_once_32(&self.entry[sequence % self.entries].answer.outcome) == KEPT:
                self.entry[sequence % self.entries].answer.outcome = FILLED  # the worker that kept it is gone
        self.slots.died(worker)

    # ----------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Give all memory back, except payloads that are lent.  Each of these follows when its lease dies.

        The pages go at once, even if a forked process still maps them.  A forked child that closes its copy of the ring
        only unmaps it.
        """
        if self.mapping.closed:
            return
        self.unread = None
        self.forget_epoch()
        self.turns.close()
        self.mapping.closed = True
        self.mapping.give_back(0, self.slot_at)
        self.slots.close()
        if self.slots.lent:
            self.mapping.whole = False
            self.drop_words()

    cdef void drop_words(self) noexcept:
        """Unmap the words of a closed ring that still lends payloads, when no thread can still read them."""
        if self.mapping.closed and not self.mapping.whole and not self.inside and not self.dropped:
            self.dropped = True
            self.mapping.unmap(0, self.slot_at)


include "ring/next_batch.pxi"
