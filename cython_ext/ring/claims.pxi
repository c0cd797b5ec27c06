"""Several claims of one worker: a far worker's stand-in puts some aside, to claim more before it fills the first one.
It cannot put chunks aside, nor batches that are half written.  And the tasks that a worker looks at before it claims
them: those that are open for it alone (NOTE [ Look ahead ] in look_ahead.py).
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


cdef list open_for(Ring ring, int worker, uint64_t after, ring_entry *like):
    """The sequences after `after` that are open for a worker, as one pass over the entries finds them.

    They have the number of the entry `like` for the dataset.
    """
    cdef uint64_t word, sequence, number = ring_once(<uint64_t *>&like.ask.dataset_epoch)
    cdef ring_entry *entry
    cdef list found = []
    cdef int k
    for k in range(ring.entries):
        entry = &ring.entry[k]
        word = ring_load(entry)
        sequence = ring_seq(word)
        if (ring_state(word) == RING_OPEN and ring_owner(word) == <uint32_t>worker and sequence > after
                and sequence % ring.entries == <uint64_t>k
                and ring_once(<uint64_t *>&entry.ask.dataset_epoch) == number):
            found.append(sequence)
    found.sort()
    return found


cdef list upcoming(Ring ring, int worker, uint64_t claimed, uint64_t after, int most):
    """Read tasks that are open for a worker, without claiming them.

    Nobody else may claim them, and the trainer takes none back, so they stay as they are.

    Args:
        ring: the worker's side.
        worker: its index.
        claimed: the sequence that it has claimed.
        after: a sequence; only later ones are read.
        most: how many at most, the lowest first.

    Returns:
        For each task: its sequence, the task as claim() gives it, and whether it lists its rows.  All are of the epoch
        of the claimed one.  Those with another number for the dataset's set_epoch() are left out, because the dataset
        does not know it yet.
    """
    cdef uint32_t kind = 0
    cdef uint64_t sequence, size = 0
    cdef list found = [], before = None, tasks = []
    cdef ring_entry *entry
    cdef bint listed
    while found != before:      # one pass may miss an earlier one: see lowest()
        before, found = found, open_for(ring, worker, max(claimed, after), &ring.entry[claimed % ring.entries])
    for sequence in found[:most]:
        entry = &ring.entry[sequence % ring.entries]
        ring.measure(sequence, &kind, &size)
        listed = ring_once_32(&entry.ask.rows) and ring_once_32(&entry.ask.row) == <uint32_t>LISTED
        tasks.append((sequence, ring.read_task(sequence, kind, size), listed))
    return tasks
