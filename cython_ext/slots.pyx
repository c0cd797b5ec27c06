# cython: language_level=3, boundscheck=False, wraparound=False
"""The payload slots, from the trainer's side.  Why there are always enough of them: NOTE [ Slot ring ] in ring.pxd."""

cimport cython
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport getpid

from shmloader._ring cimport Ring, check_index


@cython.final
cdef class Slots:
    """Which payloads are free, and who has those that are not.

    A payload is free, or filled by workers, or lent to a batch that was delivered, or kept by a worker.  A lease that
    is guarded gives its payload back only when nothing on a device reads it any more: NOTE [ Pinning ] in pinning.py.

    Args:
        ring: whose payloads they are.
        spare: how many may be lent at once.
    """

    def __cinit__(self, Ring ring, int spare):
        cdef int k, working = ring.batches + spare
        self.mapping, self.payloads = ring.mapping, ring.payloads
        self.slot_at, self.slot_stride = ring.slot_at, ring.slot_stride
        self.kept, self.returned = {}, []
        self.is_lent = <uint8_t *>calloc(self.payloads, 1)
        self.held_back = <uint8_t *>calloc(self.payloads, 1)
        self.free = <int *>calloc(self.payloads, sizeof(int))
        if self.is_lent == NULL or self.held_back == NULL or self.free == NULL:
            raise MemoryError()
        for k in range(working):
            self.free[k] = working - 1 - k      # a stack: the payload freed last is the warmest in the caches
        self.frees, self.reserve = working, working

    def __dealloc__(self):
        free(self.is_lent)
        free(self.held_back)
        free(self.free)

    cdef char *slot(self, int payload) noexcept nogil:
        return self.mapping.base + self.slot_at + payload * self.slot_stride

    cdef int pick(self) except -1:
        if not self.frees:      # one for each batch under way and `spare` more, at most so many lent
            raise RuntimeError(f"no payload is free: {self.lent} of {self.payloads} are lent")
        self.frees -= 1
        return self.free[self.frees]

    cdef void lend(self, int payload) noexcept:
        self.lent += 1
        self.is_lent[payload] = True

    cdef void give_back(self, int payload) noexcept:
        """The lease of `payload` has died, in whatever thread; the GIL is held.  See NOTE [ Lease ]."""
        cdef Py_ssize_t at = self.slot_at + payload * self.slot_stride
        self.lent -= 1
        self.is_lent[payload] = False
        if not self.mapping.closed:
            self.free[self.frees] = payload
            self.frees += 1
        else:
            self.mapping.give_back(at, self.slot_stride)
            self.mapping.unmap(at, self.slot_stride)

    cdef int retire(self, int payload, set keepers) except -1:
        """Do not use this payload, which was lent, while a worker lives who keeps it; one of the reserve is used."""
        if self.reserve < self.payloads:
            self.free[self.frees] = self.reserve
            self.frees += 1
            self.reserve += 1
        self.kept[payload] = keepers
        self.lent -= 1
        self.is_lent[payload] = False
        return 0

    cdef int died(self, int worker) except -1:
        for payload, keepers in list(self.kept.items()):
            keepers.discard(worker)
            if not keepers:
                del self.kept[payload]
                self.free[self.frees] = payload
                self.frees += 1
        return 0

    # ------------------------------------------------------------------------------------------------ guarding

    def guard_with(self, current, tuple devices) -> None:
        """Let leases be guarded; see NOTE [ Pinning ] in pinning.py.

        Args:
            current: called where a guarded lease dies, in whatever thread, the GIL held, once for each device.  What
                it returns is noted.  It may make no call to the device, wait for nothing and take no lock.
            devices: what it is called with.
        """
        self.mapping.check_open()
        self.current, self.devices = current, devices

    cdef void hold_back(self, int payload) noexcept:
        """The guarded lease of `payload` has died: it counts as lent until reclaim()."""
        cdef object noted = None            # nobody knows: then all streams count
        if self.mapping.pid != getpid():    # a forked child copies nothing to a device
            return
        try:
            noted = [self.current(device) for device in self.devices]
        except BaseException:
            pass
        self.held_back[payload] = True
        self.returned.append((payload, noted))

    def returns(self) -> list[tuple[int, object]]:
        """The payloads whose guarded leases have died since this was last asked, and what was noted then."""
        cdef list fresh = []                # first: the collector may run here, and have a lease die
        cdef list found = self.returned
        self.returned = fresh
        return found

    @property
    def has_returns(self) -> bool:
        """Whether returns() has something to tell."""
        return len(self.returned) > 0

    def reclaim(self, int payload) -> None:
        """Nothing reads this payload any more, whose guarded lease has died: it is free, also where the ring is closed.
        """
        check_index("payload", payload, self.payloads)
        if not self.held_back[payload]:
            raise ValueError(f"payload {payload} is not held back: no guarded lease of it has died since it was lent")
        self.held_back[payload] = False
        self.give_back(payload)

    def address(self, int payload) -> int:
        """Where this payload starts in this process's memory; while it is lent, also where the ring is closed."""
        check_index("payload", payload, self.payloads)
        return <uint64_t>self.slot(payload)

    def lent_payloads(self) -> set[int]:
        """The payloads that leases hold, and those of guarded leases that were not reclaimed."""
        cdef int k
        self.mapping.check_open()
        return {k for k in range(self.payloads) if self.is_lent[k]}

    # ------------------------------------------------------------------------------------------------ the end

    cdef void close(self) noexcept:
        """Give back what is not lent: the workers are gone, nobody fills it.  The rest follows, lease by lease."""
        cdef Py_ssize_t at
        cdef int k
        for k in range(self.payloads):
            at = self.slot_at + k * self.slot_stride
            if not self.is_lent[k]:
                self.mapping.give_back(at, self.slot_stride)
                if self.lent:   # else the mapping goes as a whole
                    self.mapping.unmap(at, self.slot_stride)
