"""The warnings that a Python without a GIL (free-threaded) gives when it imports shmloader.
NOTE [ GIL ] lists the modules that rely on the GIL.

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
with a warning that lacks the reason; warn() adds it.  A lock around the slots would not help: the garbage collector may
drop a batch at any point, even in code that holds the lock, and that thread would then wait for itself.  Instead the
stack of free slots would have to become one word that changes by compare-and-swap, as the ring's words do.
"""

from __future__ import annotations

import sys
import warnings

KEEPS = (
    "shmloader has enabled the GIL, because its core relies on it. A slot that one thread frees while another calls "
    "next() could go to two batches. Nothing else changes: workers are processes. See 'What it runs on' under Limits."
)
LACKS = (
    "shmloader runs without the GIL, on which its core relies. Where one thread drops a batch while another calls "
    "next(), two batches can get one slot, and one overwrites the other. Unset PYTHON_GIL=0, or leave out -X gil=0."
)


def is_enabled() -> bool:
    """Whether this Python has a GIL now."""
    ask = getattr(sys, "_is_gil_enabled", None)
    return ask is None or bool(ask())


def warn(was_enabled: bool) -> None:
    """Warn if importing the core has enabled the GIL, or if the user has forbidden that.

    Args:
        was_enabled: Whether there was a GIL before.
    """
    if not is_enabled():
        warnings.warn(LACKS, RuntimeWarning, stacklevel=3)
    elif not was_enabled:
        warnings.warn(KEEPS, RuntimeWarning, stacklevel=3)
