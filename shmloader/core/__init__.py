"""The compiled core: what setup.py builds from cython_ext/, with the stubs that say what each module offers.

NOTE [ GIL ]

Only in the trainer do several threads use the ring.  `next()` runs in one of them, but a batch may die in any
other, and its slot is free from then on.  These modules rely on the GIL there; without it this would happen:

    free_slots      give_back() and pick() push to the same stack and pop from it, in two threads.  One slot goes to
                    two batches, and the second overwrites the first.  The counts `lent` and `returned` go wrong, too.
    lease           release() and the end of the last tensor both read `payload`, then set it.  One slot is freed twice.
    next_batch      `occupied` keeps a second thread out of next().  Two threads can see it unset.
    reclaim         `reclaiming` keeps a second thread out of the code that frees the slots which no copy to a device
                    reads any more.  Two threads can see it unset.
    current         `here` and `left` say which stream is current.  If a stream is missed, a slot is filled too soon.
    cuda_driver     pools of events: one event is taken twice.
    figures, turns, log, progress
                    plain sums: a count is lost, so a report or a saved state is wrong by one.
    jpeg            one Decoder in two threads: one reads a file that the other has closed.

Two things are safe without it.  Only the verbs of atomics.h touch the words that processes share (ring, sequences,
worker, lane, onlooker).  And the module `gather` only copies.  In a worker, one thread uses the ring.

So no module declares that it is safe (Py_mod_gil).  CPython then enables the GIL when it imports the first of them,
with a warning.  A lock around the slots would not help: the garbage collector may
drop a batch at any point, even in code that holds the lock, and that thread would then wait for itself.  Instead the
stack of free slots would have to become one word that changes by compare-and-swap, as the ring's words do.
"""
