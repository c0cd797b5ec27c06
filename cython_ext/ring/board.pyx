# cython: language_level=3, boundscheck=False, wraparound=False
"""A crew's board, and the one wait of a worker that serves several loaders: it chooses for which one it works next.
The trainer wakes a worker here for a message, and waits until the worker has carried it out.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.time cimport timespec

from atomics cimport (
    RING_ANY, ring_announce, ring_claim, ring_hear, ring_heard, ring_notices, ring_notify, ring_ring,
    ring_rise, ring_sleep, ring_toll, ring_worker,
)
from clock cimport until
from shmloader.core.ring cimport Mapping, check_index
from shmloader.core.worker cimport WorkerSide
from ring.spin cimport spin_budget, spin_learn, spin_once

LINE_BYTES = sizeof(ring_worker)        # for each worker, and one more


@cython.final
cdef class Board:
    """The trainer's side of the board.

    Args:
        mapping: memory of LINE_BYTES for each worker, and once more for the trainer, all 0 at first.
        workers: how many there are.
    """

    def __cinit__(self, Mapping mapping not None, int workers):
        self.mapping, self.worker, self.workers = mapping, <ring_worker *>mapping.base, workers

    def renew(self, int worker) -> None:
        """Prepare for another process as this worker, before it starts: no message was sent to it."""
        check_index("worker", worker, self.workers)
        ring_hear(&self.worker[worker], ring_notices(&self.worker[worker]))

    def notify(self, int worker) -> int:
        """Wake this worker, because a message lies in its socket.  Returns the message's number, for wait_heard()."""
        check_index("worker", worker, self.workers)
        cdef uint32_t number = ring_notify(&self.worker[worker])
        ring_toll(&self.worker[worker].bell)
        return number

    def has_heard(self, int worker, uint32_t number) -> bool:
        """Whether this worker has carried out that message and all earlier ones."""
        check_index("worker", worker, self.workers)
        return ring_heard(&self.worker[worker]) - number < 0x80000000u

    def died(self) -> None:
        """End all waits, because a worker has died."""
        self.deaths += 1
        ring_toll(&self.worker[self.workers].bell)

    def wait_heard(self, int worker, uint32_t number, double seconds) -> bool:
        """Wait until has_heard().  False if `seconds` have passed, or any worker has died meanwhile."""
        cdef timespec deadline
        cdef int error = 0
        cdef uint32_t seen, deaths = self.deaths
        cdef ring_worker *trainer = &self.worker[self.workers]
        until(seconds, &deadline)
        while not self.has_heard(worker, number):
            if self.deaths != deaths or error == ETIMEDOUT:
                return False
            seen = ring_announce(&trainer.bell)
            error = 0
            if not self.has_heard(worker, number) and self.deaths == deaths:
                with nogil:
                    error = ring_sleep(&trainer.bell, seen, &deadline)
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx
        return True


@cython.final
cdef class Hand:
    """A worker's side: it waits for something to do in any of its rings, or for a message.

    It chooses the ring whose trainer will want this worker's batch first: the one that takes the fewest other batches
    before it.  If two are equal, it chooses the one in which it has claimed nothing for longer.  So no ring starves: if
    a trainer waits for this worker's batch, no batch comes before it, and the worker makes at most one batch for each
    other ring first.

    Args:
        board: the crew's.
        me: which worker this is.
        spin: whether it may pause on its core before it sleeps.
    """

    def __cinit__(self, Board board not None, int me, bint spin):
        check_index("worker", me, board.workers)
        self.board, self.me, self.spin.yields = board, me, not spin
        self.seen = ring_heard(&board.worker[me])       # messages to a former process are not for this one

    cdef bint is_called(self) noexcept nogil:
        return ring_notices(&self.board.worker[self.me]) != self.seen

    cdef WorkerSide choose(self, list sides):
        cdef WorkerSide side
        cdef WorkerSide found = None
        cdef int64_t distance, least = 0        # batches until the trainer wants the side's next one
        for side in sides:
            if side.wants():
                distance = side.ahead()
                if found is None or distance < least or (distance == least and side.turn < found.turn):
                    found, least = side, distance
        return found

    cdef int pass_on(self, list sides, WorkerSide taken) except -1:
        """Wake another worker if other rings have sequences open for ANY: perhaps only this one was woken for them."""
        cdef WorkerSide side
        cdef int k
        for side in sides:
            if side is not taken and side.wants() and side.who == RING_ANY:
                for k in range(self.board.workers):
                    if k != self.me and ring_ring(&self.board.worker[k].bell):
                        return 0
                return 0
        return 0

    def claim(self, list sides):
        """Wait for something to do, and claim it.

        Args:
            sides: this worker's side of each ring that it serves.

        Returns:
            The side, and the task, as WorkerSide.claim() returns it.  None: a message has come.  Read it, carry it out,
            and call heard().
        """
        cdef WorkerSide side
        cdef ring_worker *mine = &self.board.worker[self.me]
        cdef uint32_t seen
        cdef int k, budget = -1
        while not self.is_called():
            side = self.choose(sides)
            if side is not None:
                if not ring_claim(&side.entry[side.cursor % side.entries], side.cursor, side.who, side.me):
                    continue    # another worker was quicker
                self.turns += 1
                side.turn = self.turns
                if len(sides) > 1:
                    self.pass_on(sides, side)
                return side, side.begin()
            if budget < 0:      # once in each call
                k, budget = 0, spin_budget(&self.spin)
                while k < budget and not self.is_called() and self.choose(sides) is None and spin_once(&self.spin):
                    k += 1
                if budget:
                    spin_learn(&self.spin, k, self.choose(sides) is not None)
                continue
            for side in sides:
                side.lane.sleeps()
            seen = ring_announce(&mine.bell)
            if self.choose(sides) is None and not self.is_called():
                with nogil:
                    ring_sleep(&mine.bell, seen, NULL)
            ring_rise(&mine.bell)
            PyErr_CheckSignals()    # NOTE [ Sleep ] in trainer.pyx
        return None

    def heard(self) -> None:
        """The next message was carried out."""
        self.seen += 1
        ring_hear(&self.board.worker[self.me], self.seen)
        ring_ring(&self.board.worker[self.board.workers].bell)
