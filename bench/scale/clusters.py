"""The clusters that are only simulated: batches, networks, and how many far workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bench.scale.costs import COSTS, PREFETCH
from bench.scale.plan import Plan

PICTURES = 128  # in a batch
PIXELS = PICTURES * 3 * 224 * 224


@dataclass(frozen=True)
class Kind:
    """A kind of batch.

    Args:
        label: For tables and pictures.
        size: Its bytes.
    """

    label: str
    size: float

    @property
    def making(self) -> float:
        """Seconds that a far CPU takes for a batch, with collating and sending it."""
        return PICTURES * COSTS["sample"].value + self.size * COSTS["sending"].value * COSTS["copy"].value


KINDS = {
    "uint8": Kind("128 x 3 x 224 x 224, uint8 (19 MB)", PIXELS),
    "float32": Kind("128 x 3 x 224 x 224, float32 (77 MB)", 4 * PIXELS),
}
GIGABITS = (10, 25, 100)
FAR = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # far workers of a trainer
LATENCIES = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
REQUESTS = (1, 2, 3, 4, 6, 8)
TRAINERS, FAR_OF_ALL = 64, 1000
TROUBLES = ("none", "slow", "vanish")
SCHEDULES = ("steal", "round_robin")
ON_A_NODE = 8  # trainers that share a machine, as those of 8 GPUs do
# what goes wrong, the schedule, and how many trainers share a node
FLEETS = (*((trouble, by, 1) for trouble in TROUBLES for by in SCHEDULES), ("none", "steal", ON_A_NODE))
CORES = 4  # that a trainer leaves its stand-ins
JITTER = 0.05
CALM, FILLS = 3.0, 2.0  # a rate is counted after so many seconds, and as long as it takes to fill the ring so often


def plan_of(kind: str, gigabits: float, far: int, **others: Any) -> Plan:
    """The plan of a cluster that is as the costs say."""
    what = KINDS[kind]
    bandwidth = gigabits * 1e9 / 8
    trainers = others.get("trainers", 1)
    settled = CALM + FILLS * far / trainers * PREFETCH * what.size / bandwidth
    plan = Plan(
        what.size,
        what.making,
        far,
        bandwidth=bandwidth,
        latency=COSTS["latency"].value,
        receiving=COSTS["receiving"].value * COSTS["copy"].value,
        loop=COSTS["loop"].value,
        jitter=JITTER,
        cores=CORES,
        warm_up=settled,
        seconds=4 * settled,
    )
    return replace(plan, **others)
