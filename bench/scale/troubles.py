"""What goes wrong in a large cluster: slow workers, and machines that vanish."""

from __future__ import annotations

import itertools
import random

from bench.scale.plan import Death

SEED = 3
SLOW = 0.05  # of the far workers
EVERY, AWAY = 300.0, 30.0  # seconds: how often a node vanishes, on the average, and until its far workers are back


def slow_ones(far: int) -> frozenset[int]:
    """The numbers of the slow ones among this many far workers."""
    return frozenset(random.Random(SEED).sample(range(far), round(SLOW * far)))


def vanishing(nodes: int, seconds: float) -> tuple[Death, ...]:
    """The deaths of this many nodes within this many seconds.

    Nodes have vanished and come back for long, so some are away at the beginning.
    """
    draw = random.Random(SEED)
    deaths = []
    for node in range(nodes):
        at = -AWAY + draw.expovariate(1 / EVERY)
        while at < seconds:
            deaths.append(Death(max(0.0, at), node, AWAY + min(0.0, at)))
            at += AWAY + draw.expovariate(1 / EVERY)
    return tuple(deaths)


def back_at(came: list[float], killed: float, end: float) -> float:
    """When the first batch came from a worker that was killed, after the longest pause since.

    Args:
        came: When its batches came.
        killed: When it was killed.  A batch that was ready may come after that.
        end: When nothing was counted any longer.
    """
    times = [killed, *(at for at in came if at > killed), end]
    return max(itertools.pairwise(times), key=lambda pause: pause[1] - pause[0])[1]
