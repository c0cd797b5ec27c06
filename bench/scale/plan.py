"""What is simulated: trainers, far workers, their networks, and what goes wrong.

A plan has no random numbers except the jitter of batches.  Which workers are slow and when machines vanish is a part of
the plan, see troubles.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from bench.scale.costs import FURTHER_BYTES, IN_FLIGHT, PREFETCH, STEALING_FACTOR


@dataclass(frozen=True)
class Death:
    """A node of far workers that vanishes, with all of them.

    Args:
        at: When, in seconds.
        node: Its number.
        away: After how many seconds its far workers are back.
        noticed: After how many seconds the trainers know.  0 if the connections break.
    """

    at: float
    node: int
    away: float
    noticed: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A cluster and its work.

    Args:
        batch_bytes: Bytes of a batch.
        making: Seconds that a worker takes for a batch, one that is not slow.
        far: Far workers in all; worker w belongs to trainer w % trainers.
        local: Workers of each trainer on its own node.
        trainers: Trainers in all.
        trainers_per_node: How many share a node, and so its network and cores.
        far_per_node: Far workers on a node; worker w runs on node w // far_per_node.
        bandwidth: Bytes a second of each node's network, in each direction.
        far_bandwidth: The same of nodes with far workers, if theirs differs.
        latency: Seconds that a byte takes from node to node.
        receiving: Seconds of a core that a stand-in takes for a byte.
        cores: Cores of a trainer's node that its stand-ins share.
        loop: Seconds between two batches in which the loop asks for none.
        steals: Whether schedule="steal".
        in_flight: Requests under way to each far worker.
        prefetch_factor: As of the loader.
        deepens: Whether the ring of small batches holds more of them, as it does without max_ring_bytes.
        slow: Numbers of far workers that are slow.
        slow_factor: How many times as long these take.
        jitter: By which share of its time a batch may take more or less, at random.
        deaths: Nodes that vanish.
        seconds: For how long rates are counted.
        warm_up: Seconds before.
    """

    batch_bytes: float
    making: float
    far: int
    local: int = 0
    trainers: int = 1
    trainers_per_node: int = 1
    far_per_node: int = 16
    bandwidth: float = math.inf
    far_bandwidth: float | None = None
    latency: float = 0.0
    receiving: float = 0.0
    cores: int = 4
    loop: float = 0.0
    steals: bool = True
    in_flight: int = IN_FLIGHT
    prefetch_factor: int = PREFETCH
    deepens: bool = True
    slow: frozenset[int] = field(default_factory=frozenset)
    slow_factor: float = 3.0
    jitter: float = 0.0
    deaths: tuple[Death, ...] = ()
    seconds: float = 10.0
    warm_up: float = 2.0

    def under_way(self, workers: int) -> int:
        """How many batches a trainer with so many workers has under way, as in trainer/schedule.py."""
        least = workers * self.prefetch_factor
        if not (self.steals and self.deepens):
            return least
        return min(max(least, int(FURTHER_BYTES // max(self.batch_bytes, 1))), STEALING_FACTOR * least)
