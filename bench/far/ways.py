"""The ways in which a batch of a far worker comes to the trainer: straight, passed on by a process, or 10 ms later.
Each has the number of batches that a far worker is asked for at once.
"""

from __future__ import annotations

WAYS: dict[str, tuple[float | None, int]] = {
    # how many seconds later each byte comes, in both directions (None: straight), and how many batches each far worker
    # is asked for at once
    "far": (None, 2),
    "passed on": (0.0, 2),
    "passed on, six at once": (0.0, 6),
    "10 ms later": (0.01, 2),
    "10 ms later, six at once": (0.01, 6),
    "10 ms later, one at a time": (0.01, 1),
}
