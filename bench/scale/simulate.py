"""One plan, simulated: how many batches each trainer gets, and what was busy meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import simpy

from bench.scale.links import Cores, Line
from bench.scale.plan import Death, Plan
from bench.scale.ring import Ring
from bench.scale.workers import FarWorker, Steps, local_worker

SEED = 11
FULL = 0.9  # what is busy for this share of the time is a bottleneck
RING = "ring"  # nothing is that busy: workers wait for batches to be opened, or for bytes that are under way


@dataclass(frozen=True)
class Result:
    """What came out.

    Args:
        rates: Batches a second of each trainer.
        busy: The share of the time for which each kind of thing was busy: the trainers' networks and the cores of their
            stand-ins, the far nodes' networks and CPUs, and the loops.
        remade: Batches that were opened again.
        orders: The sequences that each trainer took, from the beginning.
    """

    rates: list[float]
    busy: dict[str, float]
    remade: int
    orders: list[list[int]]

    @property
    def rate(self) -> float:
        """Batches a second of a trainer, on the average."""
        return sum(self.rates) / len(self.rates)

    @property
    def bottleneck(self) -> str:
        """What was busiest, or RING."""
        most = max(self.busy, key=lambda name: self.busy[name])
        return most if self.busy[most] >= FULL else RING


class _Cluster:
    """All that a plan has, at time 0."""

    def __init__(self, env: simpy.Environment, plan: Plan) -> None:
        draw = random.Random(SEED)
        nodes = -(-plan.trainers // plan.trainers_per_node)
        self.into = [Line(env, plan.bandwidth) for _ in range(nodes)]
        self.cores = [Cores(env, plan.cores) for _ in range(nodes)]
        far_bandwidth = plan.bandwidth if plan.far_bandwidth is None else plan.far_bandwidth
        self.out = [Line(env, far_bandwidth) for _ in range(-(-plan.far // plan.far_per_node))]
        self.rings, self.far = [], []

        def making(factor: float) -> Callable[[], float]:
            least, most = plan.making * factor * (1 - plan.jitter), plan.making * factor * (1 + plan.jitter)
            return lambda: draw.uniform(least, most)

        for trainer in range(plan.trainers):
            its = range(trainer, plan.far, plan.trainers)
            ring = Ring(env, plan.local + len(its), plan.under_way(plan.local + len(its)), plan.steals)
            self.rings.append(ring)
            for me in range(plan.local):
                env.process(local_worker(env, ring, me, making(1)))
            node = trainer // plan.trainers_per_node
            for me, number in enumerate(its, plan.local):
                factor = plan.slow_factor if number in plan.slow else 1
                out = self.out[number // plan.far_per_node]
                worker = FarWorker(env, plan, ring, me, making(factor), out, self.into[node], self.cores[node])
                self.far.append((number // plan.far_per_node, worker))
            env.process(_loop(env, ring, plan.loop))
        for death in plan.deaths:
            env.process(self._vanish(env, death))

    def _vanish(self, env: simpy.Environment, death: Death) -> Steps:
        yield env.timeout(death.at)
        workers = [worker for node, worker in self.far if node == death.node]
        for worker in workers:
            worker.die(death.noticed)
        yield env.timeout(max(death.away, death.noticed))
        for worker in workers:
            worker.start()

    def busy(self, plan: Plan) -> dict[str, float]:
        """Seconds for which each kind of thing has been busy, of each one on the average."""
        return {
            "trainer's network": sum(line.busy for line in self.into) / len(self.into),
            "trainer's cores": sum(cores.busy / cores.count for cores in self.cores) / len(self.cores),
            "far networks": sum(line.busy for line in self.out) / max(1, len(self.out)),
            "far CPUs": sum(worker.busy for _, worker in self.far) / max(1, len(self.far)),
            "loop": sum(len(ring.taken) for ring in self.rings) * plan.loop / len(self.rings),
        }


def _loop(env: simpy.Environment, ring: Ring, seconds: float) -> Steps:
    for sequence in itertools.count():
        yield ring.made(sequence)
        ring.take(sequence)
        if seconds:
            yield env.timeout(seconds)


def simulate(plan: Plan) -> Result:
    """Run a plan from time 0, and count after its warm-up."""
    env = simpy.Environment()
    cluster = _Cluster(env, plan)
    env.run(plan.warm_up)
    before, busy = [len(ring.taken) for ring in cluster.rings], cluster.busy(plan)
    env.run(plan.warm_up + plan.seconds)
    after = cluster.busy(plan)
    return Result(
        [(len(ring.taken) - count) / plan.seconds for ring, count in zip(cluster.rings, before, strict=True)],
        {name: (after[name] - busy[name]) / plan.seconds for name in after},
        sum(ring.remade for ring in cluster.rings),
        [ring.taken for ring in cluster.rings],
    )
