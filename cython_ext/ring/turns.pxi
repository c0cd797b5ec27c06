"""Measures a loader in the trainer: the time in next() and between its calls, and for which stage of a batch it waits.
NOTE [ Figures ] in atomics.h.
"""

import weakref


from atomics cimport (
    ring_add, ring_committed, ring_entry, ring_load, ring_note, ring_noted, ring_once_32, ring_owner, ring_worker,
)
from shmloader.core.figures cimport (
    BATCHES, BYTES, CLAIM, COLLATE, DEATHS, EMPTY, FETCH, FIRST, MOVED, ON_CLAIM, ON_COLLATE, ON_FETCH, ON_HAND_OUT,
    ON_OPEN, ON_WAKE, ORDER, READY, READY_BATCHES, SAMPLES, STARTING, STEP, WAIT, Figures, Log, figures,
    histogram_add, of_worker, taken,
)


cdef inline uint64_t between(uint64_t least, uint64_t value, uint64_t most) noexcept nogil:
    """Clamp a time that a worker has written, because it may be any number."""
    return least if value < least else most if value > most else value


@cython.final
cdef class Meter:
    """The counts of one loader, over all its iterators.

    Args:
        workers: how many the loader has.
    """

    def __init__(self, int workers=0):
        self.figures, self.log, self.turns = Figures(workers), Log(), weakref.WeakSet()

    def now(self) -> Figures:
        """A copy of all counts, with those that the workers of living iterators report."""
        cdef list living = self.living()        # first, because no other thread runs after it until all is added up
        cdef Figures copy = self.figures.copy()
        for turns in living:
            (<Turns>turns).add_workers(copy)
        return copy

    def living(self) -> list:
        """The turns of living iterators.  Another thread may begin or end an epoch meanwhile."""
        cdef list references = list(self.turns.data)    # in one step, which iterating over the set is not
        return [turns for turns in [reference() for reference in references] if turns is not None]


@cython.final
cdef class Turns:
    """Measures an iterator's batches, and adds to its loader's figures.

    Args:
        meter: the loader's.
        ring: the trainer's side; None: there is no ring, and only turns are counted.
        in_order: whether batches are taken in their order.
    """

    def __cinit__(self, Meter meter not None, Ring ring=None, bint in_order=True):
        self.meter, self.figures, self.kind, self.in_order = meter, meter.figures, WAIT, in_order
        if ring is not None:
            self.mapping, self.header, self.worker = ring.mapping, ring.header, ring.worker
            self.payload, self.payloads, self.slot_most = ring.payload, ring.payloads, ring.slot_most
            self.workers, self.most_asks = ring.workers, ring.batches
            meter.figures.have(ring.workers)
            meter.turns.add(self)
        self.asks = <uint64_t *>calloc(self.most_asks + 1, sizeof(uint64_t))
        if self.asks == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.asks)

    # ------------------------------------------------------------------------------------------------ in next()

    cdef void ask(self, uint64_t time) noexcept:
        if self.asked_at:       # the last call gave no batch
            self.handed_out_at = 0
        self.asked_at, self.taken_at = time, 0
        if self.mapping is None:
            return
        self.asks[self.asks_made % <uint64_t>self.most_asks] = time
        self.asks_made += 1
        if not self.mapping.closed:
            ring_note(&self.header.asked_at, time)

    cdef void hand_out(self, uint64_t time) noexcept:
        cdef figures *at = &self.figures.at
        cdef uint64_t waited = time - self.asked_at, stepped = 0
        if not self.asked_at:
            return
        if self.handed_out_at:
            stepped = self.asked_at - self.handed_out_at
            histogram_add(&at.of[self.kind + STEP], stepped)
        if not self.calls:
            histogram_add(&at.of[self.kind + FIRST], waited + self.starting)
        if self.calls < <uint64_t>max(1, self.workers):     # with the workers' start
            at.amount[STARTING] += waited + self.starting if self.kind == WAIT else 0
        histogram_add(&at.of[self.kind + WAIT], waited + self.starting)
        self.calls, self.starting, self.handed_out_at = self.calls + 1, 0, time
        if self.source is not None and not self.source.mapping.closed:
            ring_add(&self.source.header.user_waited_ns, waited)
            ring_add(&self.source.header.user_stepped_ns, stepped)
        if self.mapping is None:
            return
        if self.taken_at:
            at.amount[ON_HAND_OUT] += time - self.taken_at
            self.meter.log.handed_out(self.logged, time)
        if not self.mapping.closed:
            ring_add(&self.header.waited_ns, waited)
            ring_add(&self.header.stepped_ns, stepped)
            ring_add(&self.header.asked, 1)

    cdef void leave(self) noexcept:
        if self.handed_out_at < self.asked_at:      # it gave no batch, so the time after it is no step
            self.handed_out_at = 0
        self.asked_at = 0
        if self.mapping is not None and not self.mapping.closed:
            ring_note(&self.header.asked_at, 0)

    cdef void new_epoch(self, uint64_t epoch) noexcept:
        self.calls, self.asked_at, self.handed_out_at = 0, 0, 0
        if self.mapping is not None and not self.mapping.closed:
            ring_note(&self.header.epoch, epoch)

    cdef void opened(self) noexcept:
        ring_add(&self.header.opened, 1)

    cdef void came(self) noexcept:
        ring_add(&self.header.taken, 1)

    cdef void took(self, Sequences sequences, ring_given *given, uint64_t used, int lent) noexcept:
        """Record a batch that was taken.  Its sequences are READY, so what their workers wrote before can be read."""
        cdef figures *at = &self.figures.at
        cdef uint64_t time = now(), ready = 0
        cdef uint64_t opened = 0, claimed = 0, fetched = 0, published = 0     # of the chunk that came last
        cdef int k, worker = 0, owner = 0
        cdef uint64_t sequence = given.sequence
        cdef ring_entry *entry
        cdef taken *note
        self.logged = self.meter.log.count
        for k in range(given.chunks):
            entry = &sequences.entry[sequence % <uint64_t>sequences.entries]
            note = self.meter.log.next()
            note.batch, note.sequence, note.chunk = given.batch, sequence, k
            note.opened_at = sequences.given[sequence % <uint64_t>sequences.entries].opened_at
            sequence = sequences.given[sequence % <uint64_t>sequences.entries].then
            note.claimed_at = between(note.opened_at, ring_noted(&entry.claimed_at), time)
            note.published_at = between(note.claimed_at, ring_noted(&entry.published_at), time)
            note.fetched_at = between(note.claimed_at, ring_noted(&entry.fetched_at) or time, note.published_at)
            note.asked_at, note.taken_at, note.handed_out_at, note.dropped_at = self.asked_at, time, 0, 0
            worker = ring_owner(ring_load(entry))
            note.worker, note.samples = worker, 0 if k else given.samples
            note.epoch = <uint32_t>ring_noted(&self.header.epoch)
            histogram_add(&at.of[CLAIM], note.claimed_at - note.opened_at)
            histogram_add(&at.of[FETCH], note.fetched_at - note.claimed_at)
            histogram_add(&at.of[COLLATE], note.published_at - note.fetched_at)
            if note.published_at >= published:
                opened, claimed, fetched = note.opened_at, note.claimed_at, note.fetched_at
                published, owner = note.published_at, worker
        if not self.in_order or self.available_at < published:
            self.available_at = published
        histogram_add(&at.of[ORDER], self.available_at - published)
        histogram_add(&at.of[READY], time - self.available_at)
        if self.asked_at:
            ready = self.ready_when_asked(self.available_at)
            self.waited_for(opened, claimed, fetched, published, time, owner)
        self.taken_at = time
        at.amount[BATCHES] += 1
        at.amount[SAMPLES] += given.samples
        at.amount[BYTES] += used
        at.amount[READY_BATCHES] += ready
        at.amount[EMPTY] += self.asked_at and not ready
        ring_add(&self.header.samples, given.samples)
        ring_add(&self.header.bytes, used)
        ring_add(&self.header.ready, ready)
        ring_add(&self.header.empty, self.asked_at and not ready)
        ring_note(&self.header.lent, lent)

    cdef uint64_t ready_when_asked(self, uint64_t available) noexcept:
        """How many calls of next(), this one included, came after the batch was ready."""
        cdef uint64_t k = 0, most = min(self.asks_made, <uint64_t>self.most_asks)
        while k < most and self.asks[(self.asks_made - 1 - k) % <uint64_t>self.most_asks] >= available:
            k += 1
        return k

    cdef void waited_for(self, uint64_t opened, uint64_t claimed, uint64_t fetched, uint64_t published,
                         uint64_t time, int worker) noexcept:
        """Divide the wait of this next() among the stages of its batch; nothing if the batch was ready before."""
        cdef uint64_t *amount = self.figures.at.amount
        cdef uint64_t since = self.asked_at
        if published <= since:
            return
        if worker < self.figures.workers:
            self.figures.worker[worker].waited_ns += time - since
        amount[ON_OPEN] += max(since, opened) - since
        since = max(since, opened)
        amount[ON_CLAIM] += max(since, claimed) - since
        since = max(since, claimed)
        amount[ON_FETCH] += max(since, fetched) - since
        since = max(since, fetched)
        amount[ON_COLLATE] += max(since, published) - since
        amount[ON_WAKE] += time - max(since, published)

    # ---------------------------------------------------------------------------- for turns that Python code counts

    def asked(self) -> None:
        """next() was called."""
        self.ask(now())

    def handed_out(self) -> None:
        """next() returns a batch."""
        if self.asked_at:
            self.hand_out(now())
        self.leave()

    def copied(self, int why) -> None:
        """A batch is copied out of its slot."""
        self.figures.add(why)
        if not self.mapping.closed:
            ring_add(&self.header.copied, 1)

    def pass_on_to(self, Turns source not None) -> None:
        """Count the user's turns in the figures of the source's ring, too, from which a prefetch thread takes."""
        self.source, self.workers = source if source.mapping is not None else None, source.workers

    def begin(self, uint64_t started=0) -> None:
        """An epoch begins.  Its first next() also counts the nanoseconds that iter() took."""
        self.calls, self.asked_at, self.handed_out_at, self.starting = 0, 0, 0, started

    # ------------------------------------------------------------------------------------------------ at this moment

    @property
    def lent_slots(self) -> int:
        """Batches that the user holds, and whose bytes lie in the ring."""
        return 0 if self.slots is None else self.slots.lent

    @property
    def ring_bytes(self) -> int:
        """The memory of the slots; 0 if the ring is closed."""
        cdef int k
        if self.mapping is None or self.mapping.closed:
            return 0
        return sum([min(ring_committed(&self.payload[k]), self.slot_most) for k in range(self.payloads)])

    @property
    def moved_slots(self) -> int:
        """How many slots lie in a memfd because /dev/shm was too small."""
        cdef int k
        if self.mapping is None or self.mapping.closed or self.workers_added:
            return 0
        return sum([ring_once_32(&self.payload[k].overflowed) == 1 for k in range(self.payloads)])

    # --------------------------------------------------------------------------------------------- workers' reports

    cdef int add_workers(self, Figures to) except -1:
        """Add the figures that the workers report; nothing if the ring is closed."""
        cdef int k
        cdef of_worker *sum
        cdef ring_worker *own
        if self.mapping is None or self.mapping.closed or self.workers_added:
            return 0
        to.have(self.workers)
        for k in range(self.workers):
            sum, own = &to.worker[k], &self.worker[k]
            sum.published += ring_noted(&own.filled)
            sum.fetched_ns += ring_noted(&own.fetched_ns)
            sum.collated_ns += ring_noted(&own.collated_ns)
            sum.idle_ns += ring_noted(&own.idle_ns)
            sum.behind_ns += ring_noted(&own.behind_ns)
            sum.cpu_ns += ring_noted(&own.cpu_ns)
            sum.delayed_ns += ring_noted(&own.delayed_ns)
            sum.probed_ns += ring_noted(&own.probed_ns)
        return 0

    cdef void died(self) noexcept:
        """A worker has died, and is about to be replaced."""
        self.figures.at.amount[DEATHS] += 1
        ring_add(&self.header.deaths, 1)

    def close(self) -> None:
        """Keep the workers' figures, because the ring is about to be closed."""
        cdef int moved = self.moved_slots
        if self.workers_added:
            return
        self.add_workers(self.figures)
        self.figures.at.amount[MOVED] += moved
        self.workers_added = True    # in one step with that, so that another thread does not add them twice
        self.meter.turns.discard(self)
