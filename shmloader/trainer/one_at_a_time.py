"""Makes one batch at a time without workers, also if several threads ask for one.
It limits how long a thread waits while another one makes a batch whose samples are seeded.
"""

from __future__ import annotations

import warnings
from typing import Any

from shmloader.system.own_lock import OwnLock
from shmloader.worker.fetch import Fetch

PATIENCE = 30.0  # seconds

_seeding = OwnLock()  # held by the thread that makes a batch whose samples it seeds


def one_by_one(make: Fetch) -> Fetch:
    """Makes batches one at a time, also if threads share the iterator.

    It is for a function that seeds this process's generators or replaces bad samples.
    """
    making = OwnLock()

    def fetch(index: Any) -> Any:
        with making.here:
            return make(index)

    return fetch


def one_in_process(make: Fetch) -> Fetch:
    """Makes batches one at a time of all loaders of this process that seed their samples.

    The generators belong to the process.  So of two threads that make such batches at once, each would draw numbers of
    the other one's seeds, and would later restore a state that the other one had set.

    The thread that makes a batch may wait for this one, because its dataset gets its samples from a loader that is
    iterated over here.  So nobody waits for longer than PATIENCE.
    """
    waits = True

    def fetch(index: Any) -> Any:
        nonlocal waits
        if not waits:
            return make(index)
        seeding = _seeding.here
        took: list[bool] = []
        try:
            took.extend(map(seeding.acquire, (True,), (PATIENCE,)))  # one call of C, in which no handler can raise
            if not took[0]:
                waits = False
                _warn_of_shared_generators()
            return make(index)
        finally:
            if took and took[0]:
                seeding.release()

    return fetch


def _warn_of_shared_generators() -> None:
    warnings.warn(
        f"a loader with num_workers=0 that seeds its samples has waited for {PATIENCE:.0f} seconds while another "
        "thread made a batch of such a loader, and now no longer waits. Samples of both may draw each other's numbers, "
        "because the generators belong to the process. Give one of the loaders workers.",
        RuntimeWarning,
        stacklevel=3,
    )
