"""The slots, from the trainer's side: which are free, lent, kept by a worker, or held back for a device.
It picks each batch's slot, and gives pages of free slots back: of a loader at rest, and of slots that are too large.

Why there are always enough of them: NOTE [ Slot ring ] in ring.pxd.  No worker waits for a slot.  It sleeps in
WorkerSide.claim() (worker.pyx) until the trainer opens a sequence, and each sequence is opened with its slot.  So
give_back() wakes no worker.

give_back() frees a slot when the last tensor of its batch dies.  If the user holds `spare` batches for long, the next
ones are copied out of their slots: NOTE [ Lease ] in trainer/delivery.py, 2.

NOTE [ Pages go back ]

A slot that has grown keeps its pages, because it costs more to get them than to fill them.  It gives them back in three
cases.  In the first two they would be of no use for long:

    1. A loader whose workers persist has ended an epoch, AT_REST ago, and another loader of the process is iterated.
       That one's next() gives back the pages of one free slot after the other, until they are A_CALLS, because a call
       that gave back gigabytes would be late.  So no thread and no timer is needed.  Slots that are lent follow when
       their batches die.  The loader whose epoch begins or ends and the one that rests last keep their pages: training
       and validation in turn find theirs.  So do the others, while all hold no more than A_LOT.  Otherwise they begin at
       once, because memory would grow with the number of loaders.
    2. A slot has more than MUCH times the pages of the largest of the last batches.  They are counted in periods of
       WINDOW batches for each slot, and the limit is that of the last period or of the one under way, if that is
       larger.  So no slot gives back twice within a period.  If a batch comes that is too large for what was left,
       periods become twice as long: a batch that is large once in a while, or in each epoch, soon finds its pages.
    3. A batch has died whose slot has more than HUGE.  Memory may be short then, and torch's loader frees such a batch
       at once, too.  With both, 300 MB take the same time and memory: docs/patterns.md.

Only the trainer gives back, only of slots that are free, and with the GIL.  No sequence that is open or claimed names
such a slot, a worker that still has views of one keeps it (KEPT), and a dead worker has been reaped before its slot
becomes free.  So no process can write there, until the trainer names the slot in a task: ring_open() comes after that.
Slots that are page-locked, or that other processes read, keep their pages.
"""

import weakref


from atomics cimport (
    ring_committed, ring_forget_committed, ring_note_folded,
)
from shmloader.core.figures cimport BATCHES, LENT, MOST_HELD, figures, histogram_add

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    FOLDED = 16384              # bytes that stay committed, a multiple of each page size up to there: FIRST_COMMIT
    WINDOW = 4                  # NOTE [ Pages go back ], 2
    MUCH = 8
    LITTLE = 1048576            # bytes; a slot of fewer gives nothing back because of its size
    MARGIN = 65536              # bytes; what a slot keeps is a multiple, and has as many to spare, as SPARE_COMMIT
    A_CALLS = 67108864          # bytes, which take ten milliseconds
    A_LOT = 201326592           # bytes that more than two loaders may hold
    HUGE = 268435456            # bytes; a slot of more gives back with each batch

cdef uint64_t NEVER = <uint64_t>-1
cdef uint64_t AT_REST = 5_000_000_000       # nanoseconds
cdef uint64_t next_fold = NEVER             # when a ring will have rested for so long
cdef list at_rest = []                      # weak references to the Slots of rings at rest; the last one rests last


cdef int fold_rested(uint64_t time, Py_ssize_t left=A_CALLS) except -1:
    """Have payloads of rings that have rested long enough give their pages back.  Another ring's next() calls this.

    It runs no code of Python, so no other thread begins or ends an epoch meanwhile.

    Args:
        time: now.
        left: bytes that this call gives back at most, and the last slot's.
    """
    global next_fold
    cdef Py_ssize_t k = len(at_rest)
    cdef uint64_t due = NEVER
    cdef Slots slots
    if time < next_fold:
        return 0
    while k:
        k -= 1
        slots = at_rest[k]()
        if slots is not None and slots.rested_at:
            if slots.rested_at + AT_REST > time:
                due = min(due, slots.rested_at + AT_REST)
                continue
            left -= slots.fold(left)
            if left <= 0:
                next_fold = time    # with the next call it goes on
                return 0
        del at_rest[k]
    next_fold = due
    return 0


@cython.final
cdef class Slots:
    """Which payloads are free, and who has the others.

    A payload is free, being filled by workers, lent with a delivered batch, or kept by a worker.  A guarded lease gives
    its payload back only when no device can still read it: NOTE [ Pinning ] in pinning.py.

    Args:
        ring: whose payloads they are.
        spare: how many may be lent at once.
        meter: counts how long each is lent.
    """

    def __cinit__(self, Ring ring, int spare, Meter meter not None):
        cdef int k, working = ring.batches + spare
        self.mapping, self.header = ring.mapping, ring.header
        self.payload, self.payloads = ring.payload, ring.payloads
        self.spare = spare
        self.keepers, self.returned, self.reading = {}, [], []
        self.is_lent = <uint8_t *>calloc(self.payloads, 1)
        self.held_back = <uint8_t *>calloc(self.payloads, 1)
        self.free = <int *>calloc(self.payloads, sizeof(int))
        self.meter, self.lending = meter, <lending *>calloc(self.payloads, sizeof(lending))
        if self.is_lent == NULL or self.held_back == NULL or self.free == NULL or self.lending == NULL:
            raise MemoryError()
        for k in range(working):
            self.free[k] = working - 1 - k      # a stack: the payload freed last is the warmest in the caches
        self.frees, self.reserve = working, working
        self.limit, self.missed, self.period = NEVER, NEVER, WINDOW * working

    def __dealloc__(self):
        free(self.is_lent)
        free(self.held_back)
        free(self.free)
        free(self.lending)

    cdef int pick(self) except -1:
        # one for each batch under way, and `spare` more, which may be lent
        if not self.frees:
            raise MemoryError(f"no slot of the ring is free: {self.lent} of {self.payloads} have batches that are "
                              "still referenced. Drop them. An exception that broke off next() may refer to one, by "
                              "its traceback.")
        self.frees -= 1
        if ring_committed(&self.payload[self.free[self.frees]]) > self.limit:
            self.shrink(self.free[self.frees])
        return self.free[self.frees]

    cdef void lend(self, int payload) noexcept:
        self.lent += 1
        self.is_lent[payload] = True

    cdef void users(self, int payload, uint64_t logged, uint64_t time) noexcept:
        self.lending[payload].since, self.lending[payload].logged = time, logged
        self.lending[payload].batches = self.meter.figures.at.amount[BATCHES]

    cdef void no_users(self, int payload) noexcept:
        """Count how long the user had the batch; not if it was copied.  Called in any thread, with the GIL."""
        cdef lending *loan = &self.lending[payload]
        cdef figures *at = &self.meter.figures.at
        cdef uint64_t time
        if loan.since:
            time = now()
            histogram_add(&at.of[LENT], time - loan.since)
            at.held[min(at.amount[BATCHES] - loan.batches, <uint64_t>MOST_HELD - 1)] += 1
            self.meter.log.dropped(loan.logged, time)
            loan.since = 0

    def copied(self, int payload) -> None:
        """The batch in this payload was copied out, so the user does not get the slot."""
        check_index("payload", payload, self.payloads)
        self.lending[payload].since = 0

    cdef void give_back(self, int payload) noexcept:
        """The lease of `payload` has died.  Called in any thread, with the GIL.  See NOTE [ Lease ] in delivery.py."""
        self.no_users(payload)
        self.lent -= 1
        self.is_lent[payload] = False
        if not self.mapping.closed:
            if self.folded or (ring_committed(&self.payload[payload]) > <uint64_t>HUGE and not self.keeps_pages()):
                self.fold_one(payload)
            self.free[self.frees] = payload
            self.frees += 1
        else:
            self.mapping.free_pages(payload, 0, PY_SSIZE_T_MAX)
            self.mapping.unmap_slot(payload)

    cdef int retire(self, int payload, set keepers) except -1:
        """Use a payload of the reserve in place of this lent one, until all workers that keep it have died."""
        if self.reserve < self.payloads:
            self.free[self.frees] = self.reserve
            self.frees += 1
            self.reserve += 1
        self.keepers[payload] = keepers
        self.no_users(payload)
        self.lent -= 1
        self.is_lent[payload] = False
        return 0

    cdef int died(self, int worker) except -1:
        for payload, keepers in list(self.keepers.items()):
            keepers.discard(worker)
            if not keepers:
                del self.keepers[payload]
                self.free[self.frees] = payload
                self.frees += 1
        return 0

    # ------------------------------------------------------------------------------------------------ guarding

    def guard_with(self, current, tuple devices) -> None:
        """Allow guarded leases; see NOTE [ Pinning ] in pinning.py.

        Args:
            current: called once for each device when a guarded lease dies, in any thread, with the GIL.  What it
                returns is noted.  It must not call the device, wait or take a lock.
            devices: its arguments.
        """
        self.mapping.check_open()
        self.current, self.devices, self.usual = current, devices, None

    cdef void hold_back(self, int payload) noexcept:
        """The guarded lease of `payload` has died.  The payload counts as lent until reclaim()."""
        cdef object noted = None            # unknown: then all streams count
        self.no_users(payload)
        if self.mapping.pid != getpid():    # a forked child copies nothing to a device
            return
        try:
            noted = self.streams_here()
        except BaseException:
            pass
        self.held_back[payload] = True
        self.returned.append((payload, noted))

    cdef list streams_here(self):
        """The current streams of this thread, one for each device; the same list object until one of them changes."""
        cdef list usual = self.usual, now
        cdef Py_ssize_t k, devices = len(self.devices)
        cdef object stream
        for k in range(devices):
            stream = self.current(self.devices[k])
            if usual is None or stream != usual[k]:
                now = [self.current(device) for device in self.devices]
                self.usual = now
                return now
        return usual if usual is not None else []

    @property
    def any_held_back(self) -> bool:
        """Whether a guarded lease has died whose payload is not reclaimed yet."""
        return len(self.returned) > 0 or len(self.reading) > 0

    def one_at_a_time(self, function) -> None:
        """Call a function that frees what is held back, unless one is running already, in this thread or another.

        A signal handler's exception may end the function at any line.  It leaves nothing half done, so the next call
        continues from there.
        """
        if self.reclaiming:
            return
        self.reclaiming = True
        try:
            function()
        finally:
            self.reclaiming = False

    def returns(self) -> list[tuple[int, object]]:
        """Payloads whose guarded leases have died, with the streams noted; without those passed to await_events()."""
        return list(self.returned)

    def await_events(self, int count, events) -> None:
        """Free the first `count` of returns() when these events have passed."""
        self.await_them(count, events)

    cdef int await_them(self, Py_ssize_t count, list events) except -1:
        cdef list payloads = []
        cdef Py_ssize_t k
        for k in range(count):
            payloads.append((<tuple>self.returned[k])[0])
        self.reading.append((payloads, events))
        if count == len(self.returned):
            self.returned.clear()
        else:
            del self.returned[:count]
        return 0

    def awaiting(self) -> list[tuple[list[int], object]]:
        """The arguments of await_events() so far, in order: payloads and their events."""
        return list(self.reading)

    def reclaim(self, entry) -> None:
        """Free the payloads of this item of awaiting(), whose events have passed; also if the ring is closed."""
        cdef int k
        for k in range(len(self.reading)):
            if self.reading[k] is entry:
                self.reclaim_at(k)
                return
        raise ValueError(f"payloads {entry[0]} are not held back: they were reclaimed, or no guarded lease has died")

    cdef int reclaim_at(self, Py_ssize_t at) except -1:
        cdef int payload
        cdef list payloads = self.reading[at][0]
        del self.reading[at]
        for payload in payloads:
            self.held_back[payload] = False
            self.give_back(payload)
        return 0

    def address(self, int payload) -> int:
        """Where this payload starts in this process's memory; valid after the ring is closed, too, while it is lent."""
        check_index("payload", payload, self.payloads)
        return <uint64_t>self.mapping.slot(payload)

    def lent_payloads(self) -> set[int]:
        """The payloads that leases hold, and those of guarded leases that were not reclaimed."""
        cdef int k
        self.mapping.check_open()
        return {k for k in range(self.payloads) if self.is_lent[k]}

    # ------------------------------------------------------------------------------------------------ a ring at rest

    cdef bint fold_one(self, int payload, Py_ssize_t keep=FOLDED) noexcept:
        """Give back the pages of a free payload, except the first ones; false if it has no others.

        Args:
            keep: their bytes, at least FOLDED, which an exception's batch needs.
        """
        cdef Py_ssize_t bytes = ring_committed(&self.payload[payload])
        if not keep < bytes <= <Py_ssize_t>self.mapping.room(payload) or self.mapping.pid != getpid():
            return False
        self.mapping.free_pages(payload, keep, bytes)
        ring_forget_committed(&self.payload[payload], keep)
        ring_note_folded(self.header)
        return True

    cdef bint keeps_pages(self) noexcept:
        """Whether payloads are page-locked."""
        return self.current is not None

    def rest(self, uint64_t since=0) -> None:
        """The epoch is over, and the loader keeps its workers: NOTE [ Pages go back ], 1.

        Args:
            since: nanoseconds of CLOCK_MONOTONIC; 0: now.
        """
        global next_fold
        if self.mapping.closed or self.keeps_pages():
            return
        self.others_give_back()
        self.rested_at = since or now()
        next_fold = min(next_fold, self.rested_at + AT_REST)
        at_rest.append(weakref.ref(self))
        if next_fold == 0:
            fold_rested(now(), A_LOT)       # nobody waits for a batch at an epoch's end

    def wake(self) -> None:
        """An epoch begins."""
        self.rested_at, self.folded = 0, False
        if not self.mapping.closed:
            self.others_give_back()

    cdef int others_give_back(self) except -1:
        """Have rings that rest begin at once, but for the last one, if they, that one and this one hold over A_LOT."""
        global next_fold
        cdef Py_ssize_t k = len(at_rest), held = self.committed()
        cdef uint64_t long_ago = now() - AT_REST
        cdef int rings = 1
        cdef Slots slots
        while k:
            k -= 1
            slots = at_rest[k]()
            if slots is None or slots is self:
                del at_rest[k]
            elif slots.rested_at:
                rings += 1
                held += slots.committed()
                if rings > 2 and held > A_LOT:
                    slots.rested_at, next_fold = min(slots.rested_at, long_ago), 0
        return 0

    cdef Py_ssize_t committed(self) noexcept:
        """How many bytes of all payloads have pages."""
        cdef Py_ssize_t bytes = 0
        cdef int k
        for k in range(self.payloads):
            bytes += ring_committed(&self.payload[k])
        return bytes

    cdef Py_ssize_t fold(self, Py_ssize_t bytes) noexcept:
        """Give back pages of free payloads until they are as many bytes, or all.  Returns how many they were."""
        cdef Py_ssize_t had, given = 0
        cdef int k
        for k in range(self.frees):
            had = ring_committed(&self.payload[self.free[k]])
            if self.fold_one(self.free[k]):
                given += had
                if given >= bytes:
                    return given
        self.folded = True
        return given

    # ------------------------------------------------------------------------------------------------ after an outlier

    cdef void seen(self, uint64_t bytes) noexcept:
        """A batch of so many bytes was taken: NOTE [ Pages go back ], 2."""
        cdef int k
        if bytes > self.missed:
            self.missed, self.period = NEVER, min(2 * self.period, 1 << 30)
        self.largest, self.limit = max(self.largest, bytes), max(self.limit, MUCH * bytes)
        self.counted += 1
        if self.counted < self.period:
            return
        self.limit, self.largest, self.counted = max(MUCH * self.largest, <uint64_t>LITTLE), 0, 0
        for k in range(self.frees):
            if ring_committed(&self.payload[self.free[k]]) > self.limit:
                self.shrink(self.free[k])

    cdef void shrink(self, int payload) noexcept:
        """Leave a free payload as much as the largest of the last batches takes."""
        if not self.keeps_pages() and self.fold_one(payload, (self.limit // MUCH // MARGIN + 2) * MARGIN):
            self.missed = min(self.missed, self.limit // 2)     # a slot that was just too large had such a batch

    # ------------------------------------------------------------------------------------------------ the end

    cdef void close(self) noexcept:
        """Give back the payloads that are not lent: no worker is left to fill them.  Each lease gives its own back."""
        cdef int k
        self.rested_at = 0
        for k in range(self.payloads):
            if not self.is_lent[k]:
                self.mapping.free_pages(k, 0, PY_SSIZE_T_MAX)
                if self.lent:       # otherwise the whole mapping goes
                    self.mapping.unmap_slot(k)
