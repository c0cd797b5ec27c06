"""Networks and cores: whatever passes one thing after another, and is busy meanwhile.

Each keeps a calendar, that is when it will be free, in place of a queue of processes.  So a batch costs a few events,
and not a few for each packet.  A real network carries several batches at once, each more slowly.  The sum is the same.
"""

from __future__ import annotations

import heapq

import simpy


class Line:
    """One direction of a node's network.

    Attributes:
        busy: Seconds for which it has passed bytes, or will, by what was begun so far.
    """

    def __init__(self, env: simpy.Environment, bandwidth: float) -> None:
        self._env = env
        self._bandwidth = bandwidth
        self._free = 0.0
        self.busy = 0.0

    def carry(self, size: float) -> tuple[float, float]:
        """Pass so many bytes after all others; returns when the first and the last of them pass."""
        begins = max(self._env.now, self._free)
        takes = size / self._bandwidth
        self._free = begins + takes
        self.busy += takes
        return begins, self._free


class Cores:
    """Cores that several processes share."""

    def __init__(self, env: simpy.Environment, count: int) -> None:
        self._env = env
        self.count = count
        self._free = [0.0] * count
        self.busy = 0.0

    def work(self, seconds: float) -> float:
        """Have the first core that is free work for so long; returns when it is done."""
        done = max(self._env.now, self._free[0]) + seconds
        heapq.heapreplace(self._free, done)
        self.busy += seconds
        return done
