"""Simulates each curve: by far workers, latency, requests at once, fleets of 64 trainers, and late notice of a loss.
It runs in a process of its own, see core/child.py.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from bench.scale.clusters import CORES, FAR, FAR_OF_ALL, LATENCIES, REQUESTS, TRAINERS, plan_of
from bench.scale.costs import COSTS
from bench.scale.plan import Death, Plan
from bench.scale.simulate import Result, simulate
from bench.scale.troubles import slow_ones, vanishing


def _points(by: dict[float, Plan]) -> dict[str, Any]:
    return {"points": [{"at": at, **_figures(simulate(plan))} for at, plan in by.items()]}


def _figures(result: Result) -> dict[str, Any]:
    figures = asdict(result)
    del figures["orders"], figures["rates"]
    return {"rate": result.rate, "least": min(result.rates), "bottleneck": result.bottleneck, **figures}


def by_far_workers(kind: str, gigabits: int, cores: int) -> dict[str, Any]:
    """One trainer, and more and more far workers."""
    return _points({far: plan_of(kind, gigabits, far, cores=cores) for far in FAR})


def by_latency(in_flight: int, prefetch_factor: int) -> dict[str, Any]:
    """One trainer with 16 far workers, farther and farther away."""
    others: dict[str, Any] = {"in_flight": in_flight, "prefetch_factor": prefetch_factor, "seconds": 20.0}
    return _points({latency: plan_of("uint8", 100, 16, latency=latency, **others) for latency in LATENCIES})


def by_requests(prefetch_factor: int) -> dict[str, Any]:
    """One trainer with 16 far workers, of which each is asked for more and more batches at once."""
    return _points(
        {each: plan_of("uint8", 100, 16, in_flight=each, prefetch_factor=prefetch_factor) for each in REQUESTS}
    )


def fleet(kind: str, gigabits: int, trouble: str, schedule: str, on_a_node: int, seconds: float) -> dict[str, Any]:
    """64 trainers, so many on a node, with 1,000 far workers on nodes of 16."""
    plan = plan_of(
        kind,
        gigabits,
        FAR_OF_ALL,
        trainers=TRAINERS,
        trainers_per_node=on_a_node,
        cores=on_a_node * CORES,
        steals=schedule == "steal",
        seconds=seconds,
    )
    if trouble == "slow":
        plan = replace(plan, slow=slow_ones(FAR_OF_ALL))
    if trouble == "vanish":
        plan = replace(plan, deaths=vanishing(-(-FAR_OF_ALL // plan.far_per_node), plan.warm_up + seconds))
    return _figures(simulate(plan))


def silence(noticed: float) -> dict[str, Any]:
    """One trainer with 32 far workers on two nodes, of which one vanishes; counted for a minute."""
    death = Death(5.0, 0, COSTS["restart"].value, noticed)
    return _figures(simulate(plan_of("uint8", 100, 32, deaths=(death,), seconds=60.0)))
