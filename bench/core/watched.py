"""A measurement at whose memory the bench looks meanwhile: its peak, and its growth over the second half.

Memory is the proportional set size of the processes without shared memory, and the growth of all shared memory of the
machine: batches of torch's that are under way are mapped by nobody.  So nothing else may run.  The process from which
they were forked counts as well: with it, they take what they would take if each had imported torch itself (4 % more).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.core import session
from bench.core.child import ChildError
from bench.core.question import Turn
from bench.core.warm import Warm

FORKING = 0.3  # seconds, about, that a process takes to start, by a fork, and to end


@dataclass(frozen=True)
class Watched(Turn):
    """A turn of which a warm process makes the process, one for each `subject`.

    Its function returns `began` and `ended`, on the monotonic clock, beside its figures.  The result has `memory` and
    `growth` instead.
    """

    warm: dict[str, Warm] = field(default_factory=dict)

    @property
    def takes(self) -> float:
        return FORKING + self.seconds

    def measure(self) -> dict[str, Any]:
        seen, shared, parent = [], session.shared_memory(), self.warm[self.labels["subject"]]

        def look(leader: int) -> None:
            private = sum(session.memory(each, with_shared=False) for each in (leader, parent.session))
            seen.append((time.monotonic(), private + session.shared_memory() - shared))

        try:
            found = parent.run(self.function, self.arguments, self.timeout, look)
        except ChildError as failure:
            return {"failure": str(failure)}
        began, ended = found.pop("began"), found.pop("ended")
        return {**found, **memory(seen, began, ended)}


def memory(seen: Sequence[tuple[float, float]], began: float, ended: float) -> dict[str, float]:
    """The peak from the beginning on, and how much more the last quarter needed on average than the second one.

    Not the peaks of these two: those depend on what several workers do at the same moment, here and with torch's loader
    by a tenth.
    """

    def within(least: float, end: float) -> list[float]:
        return [size for at, size in seen if least <= (at - began) / (ended - began) < end]

    quarters = within(0.25, 0.5), within(0.75, 1)
    growth = fmean(quarters[1]) - fmean(quarters[0]) if all(quarters) else 0.0
    return {"memory": max(within(0, 1e9), default=0), "growth": growth}
