"""A worker's lane: what it is doing, since when, and its times: fetching, collating, idle, on a core, without a core.
NOTE [ Figures ] in atomics.h.
"""

from posix.unistd cimport getpid

from atomics cimport (
    RING_COLLATES, RING_FETCHES, RING_STARTS, RING_WAITS, ring_add, ring_entry, ring_note, ring_note_doing, ring_noted,
    ring_once_32,
)
from clock cimport now

cdef extern from "figures/cpu_time.h" nogil:
    uint64_t cpu_time()
    uint64_t cpu_delay()

cdef enum:
    PROBE = 50_000_000  # nanoseconds between two reads of the kernel's accounts, each of which takes about 10 us


@cython.final
cdef class Lane:
    """Writes a worker's figures, and the times of each sequence.  No method is called for each sample.

    Args:
        ring: the worker's side.
        me: its index.
    """

    def __cinit__(self, Ring ring, int me):
        self.worker, self.header = &ring.worker[me], ring.header
        ring_note_doing(self.worker, RING_STARTS, now())
        ring_note(&self.worker.pid, getpid())

    cdef uint64_t waited_by(self, uint64_t time) noexcept nogil:
        cdef uint64_t asked = ring_noted(&self.header.asked_at)
        return ring_noted(&self.header.waited_ns) + (time - asked if 0 < asked < time else 0)

    cdef void sleeps(self) noexcept nogil:
        """Note that the worker goes to sleep without work: either the consumer is slow, or another worker is."""
        if not self.slept:
            self.slept, self.waited = True, self.waited_by(now())

    cdef void claimed(self, ring_entry *entry) noexcept:
        cdef uint64_t time = now(), idle, waited
        cdef uint32_t epoch = ring_once_32(&entry.ask.epoch)
        ring_note(&entry.fetched_at, 0)
        ring_note(&entry.claimed_at, time)
        ring_note_doing(self.worker, RING_FETCHES, time)
        # not between epochs, when it has no work, and not twice before it begins what it has put aside
        if self.published_at and epoch == self.epoch and not self.aside:
            idle = time - self.published_at
            ring_add(&self.worker.idle_ns, idle)
            if self.slept:
                waited = self.waited_by(time)
                ring_add(&self.worker.behind_ns, min(waited - self.waited if waited > self.waited else 0, idle))
        if not self.probed_at:
            self.cpu, self.delay, self.probed_at = cpu_time(), cpu_delay(), time
        self.slept, self.epoch, self.entry = False, epoch, entry
        self.claimed_at, self.fetched_at = time, 0

    cdef void fetched(self) noexcept:
        if self.entry == NULL or self.fetched_at:
            return
        self.fetched_at = now()
        ring_note(&self.entry.fetched_at, self.fetched_at)
        ring_note_doing(self.worker, RING_COLLATES, self.fetched_at)

    cdef void published(self, bint filled) noexcept:
        cdef uint64_t time = now()
        if self.entry == NULL:
            return
        ring_note(&self.entry.published_at, time)
        ring_note_doing(self.worker, RING_WAITS, time)
        ring_add(&self.worker.published, 1)
        ring_add(&self.worker.filled, filled)
        ring_add(&self.worker.fetched_ns, (self.fetched_at or time) - self.claimed_at)
        ring_add(&self.worker.collated_ns, time - (self.fetched_at or time))
        self.worked += time - self.claimed_at
        self.published_at, self.entry = time, NULL
        if time - self.probed_at >= PROBE:
            self.probe(time)

    cdef void put_aside(self) noexcept:
        self.entry = NULL
        self.aside += 1

    cdef void taken_up(self, ring_entry *entry) noexcept:
        """What was put aside is what the worker does now.  It began when nothing before it was left to do."""
        self.entry = entry
        self.aside -= 1
        self.claimed_at, self.fetched_at = max(ring_noted(&entry.claimed_at), self.published_at), 0
        ring_note(&entry.claimed_at, self.claimed_at)
        ring_note_doing(self.worker, RING_FETCHES, self.claimed_at)

    cdef void probe(self, uint64_t time) noexcept:
        """Ask the kernel how much of the time for batches was spent on a core, and how much waiting for one."""
        cdef uint64_t cpu = cpu_time(), delay = cpu_delay()
        ring_add(&self.worker.cpu_ns, cpu - self.cpu if cpu > self.cpu else 0)
        ring_add(&self.worker.delayed_ns, delay - self.delay if delay > self.delay else 0)
        ring_add(&self.worker.probed_ns, self.worked)
        self.cpu, self.delay, self.probed_at, self.worked = cpu, delay, time, 0
