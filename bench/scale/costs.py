"""What things cost, each number with its source.  This file is the owner of all numbers that the simulation takes.

docs/scale.md repeats them in a table, and tests/bench/test_scale_page.py compares both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bench.core.results import ROOT
from shmloader.far_workers import FarWorkers
from shmloader.trainer.schedule import FURTHER_BYTES, STEALING_FACTOR

__all__ = ["COSTS", "FURTHER_BYTES", "IN_FLIGHT", "PREFETCH", "STEALING_FACTOR", "Cost"]

PREFETCH = 2  # torch's default prefetch_factor
IN_FLIGHT = FarWorkers.in_flight


@dataclass(frozen=True)
class Cost:
    """A number that was measured, or assumed where nothing could be measured.

    Args:
        value: In seconds, or in what `unit` says.
        shown: The number in the table of docs/scale.md.
        what: What costs this.
        source: Where it was measured, or that it is assumed.
    """

    value: float
    shown: str
    what: str
    source: str


def _sample() -> float:
    """Seconds of a sample of the recipe "bilinear crop, flip" with exact=False, from the published result."""
    result: Any = json.loads((ROOT / "bench/results/recipes.json").read_text(encoding="utf-8"))
    return float(result["summary"]["samples"]["crop"]["fast"]["figure"]["median"]) * 1e-6


_MEMCPY = 7.4e-3 / 2.4 / 38.5e6  # seconds a byte; docs/far-workers.md has all three numbers

COSTS = {
    "sample": Cost(
        _sample(),
        "653 us",
        "making one sample, on one CPU",
        "bench/results/recipes.json, bilinear crop, `exact=False`",
    ),
    "copy": Cost(_MEMCPY, "0.080 ns", "copying one byte", "docs/far-workers.md: 7.4 ms are 2.4 copies of 38.5 MB"),
    "receiving": Cost(2.5, "2.5 copies", "receiving a byte on the trainer's machine", "`bench far`: 2.4 to 2.6 copies"),
    "sending": Cost(2.0, "2 copies", "collating and sending a byte on a far CPU", "`bench far`: 6.5 ms for 38.5 MB"),
    "loop": Cost(429e-6, "429 us", "the loop's own thread per batch", "docs/far-workers.md"),
    "restart": Cost(3.1, "3.1 s", "an actor's restart after its death", "measured on Ray: 2.3 to 3.1 s"),
    "latency": Cost(100e-6, "0.1 ms", "latency in one direction", "assumed: one data center"),
    "heartbeat": Cost(30.0, "30 s", "until a machine that vanished counts as dead", "default of `Workers(heartbeat=)`"),
}
