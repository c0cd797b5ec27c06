"""Several claims of one worker: a far worker's stand-in puts some aside, to claim more before it fills the first one.
It cannot put chunks aside, nor batches that are half written.
"""


@cython.final
cdef class Claims:
    """What a worker has claimed and put aside, the first one first.

    Only this process knows what is put aside.  To the ring, all of it is claimed: NOTE [ Slot ring ] in ring.pxd.

    Args:
        ring: the worker's side.
    """
    cdef WorkerSide ring
    cdef list aside

    def __cinit__(self, WorkerSide ring not None):
        self.ring, self.aside = ring, []

    def __len__(self) -> int:
        return len(self.aside)

    def claim_at_once(self):
        """Claim the next sequence if one is open now.

        Returns:
            As WorkerSide.claim(); None where nothing is open.
        """
        cdef WorkerSide ring = self.ring
        ring.check_not_forked()
        while not ring.over() and ring.find_open():
            if ring_claim(&ring.entry[ring.cursor % ring.entries], ring.cursor, ring.who, ring.me):
                return ring.begin()
        return None

    def put_aside(self) -> None:
        """Leave what is claimed, of which nothing is written yet, so that another sequence can be claimed."""
        cdef WorkerSide ring = self.ring
        ring.check_claimed()
        if ring.rows or ring.used:
            raise RuntimeError("a chunk, or a batch that is half written, cannot be put aside")
        self.aside.append((ring.cursor, ring.current, ring.task_bytes, ring.to_leave))
        ring.current = -1
        ring.cursor += 1
        ring.lane.put_aside()

    def take_up(self) -> None:
        """Go on with what was put aside first."""
        cdef WorkerSide ring = self.ring
        ring.check_not_forked()
        if ring.current >= 0:
            raise RuntimeError(f"sequence {ring.cursor} is claimed, and was not put aside")
        ring.cursor, ring.current, ring.task_bytes, ring.to_leave = self.aside.pop(0)
        ring.used = ring.state_size = ring.row = ring.rows = 0
        ring.listed = False
        ring.fresh = ring.pages_of(ring.current)
        ring.follow(ring.current)
        ring.mapped.follow(ring_folds(ring.header))
        ring.lane.taken_up(&ring.entry[ring.cursor % ring.entries])
