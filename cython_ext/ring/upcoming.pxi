"""The tasks that a worker looks at before it claims them: those that are open for it alone.
NOTE [ Look ahead ] in look_ahead.py.
"""


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
