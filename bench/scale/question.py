"""Far workers past a cluster that fits here: measured and simulated alike where it fits, then simulated."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core.question import Question, Turn, add_choice, seconds
from bench.core.results import ROOT
from bench.core.spread import spread
from bench.scale import show
from bench.scale.cases import CASES
from bench.scale.clusters import FLEETS, GIGABITS, KINDS, LATENCIES
from bench.scale.costs import COSTS
from bench.scale.parts import CLUSTER, FAR, FLEET, LATENCY, PARTS, REQUESTS, SILENCE

RAY = ROOT / ".venv-ray" / "bin" / "python"
STARTING = 60.0  # seconds in which three nodes start, with the actors of some cases
CORES = {10: (4,), 25: (4,), 100: (4, 1)}  # for stand-ins, by the network's speed
DEPTHS = ((1, 2), (2, 2), (2, 4), (4, 8))  # in_flight, prefetch_factor
NOTICED = (0.0, 3.0, COSTS["heartbeat"].value)


class Scale(Question):
    name = "scale"
    asks = "how 64 trainers with 1,000 far workers do, by a simulation that is held against a cluster of three nodes"
    more = (
        "Part `cluster` starts a Ray cluster of three nodes on this machine (in the environment of `make test-ray`), "
        "whose samples sleep, and simulates the same.  All other parts are simulated alone, with the costs in "
        "bench/scale/costs.py.  Writes scale.json and scale.png."
    )
    rounds = 1

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--parts", PARTS, "which to run")
        add_choice(parser, "--cases", tuple(CASES), "which clusters are measured")
        add_choice(parser, "--kinds", tuple(KINDS), "kinds of batches")
        parser.add_argument("--seconds", type=seconds, default=10, help="simulated time of 64 trainers")

    def why_not(self) -> list[str]:
        if importlib.util.find_spec("simpy") is None:
            return ["scale: simpy is not installed: pip install 'shmloader[bench]'"]
        return []

    def settings(self) -> dict[str, Any]:
        return {
            "seconds": self.given.seconds,
            "costs": {name: {"value": cost.value, "source": cost.source} for name, cost in COSTS.items()},
        }

    def turns(self, at: int) -> list[Turn]:
        turns = []
        for part in self.given.parts if at == 0 else [CLUSTER] if CLUSTER in self.given.parts else []:
            turns += {
                CLUSTER: self._cluster,
                FAR: self._far,
                LATENCY: self._latency,
                REQUESTS: self._requests,
                FLEET: self._fleet,
                SILENCE: self._silence,
            }[part]()
        return turns

    def _cluster(self) -> list[Turn]:
        takes = STARTING + sum(CASES[case].warm_up + CASES[case].seconds + 3 for case in self.given.cases)
        missing = "" if RAY.exists() else "Ray is not installed here: `make test-ray` installs it into .venv-ray"
        return [
            Turn(
                {"part": CLUSTER},
                "bench.scale.cluster:beside",
                {"names": self.given.cases},
                takes,
                self.given.timeout + 2 * takes,
                python=str(RAY),
                failure=missing,
            )
        ]

    def _simulated(self, labels: dict[str, str], function: str, arguments: dict[str, Any], takes: float) -> Turn:
        return Turn(labels, f"bench.scale.curves:{function}", arguments, takes, self.given.timeout + 10 * takes)

    def _far(self) -> list[Turn]:
        return [
            self._simulated(
                {"part": FAR, "kind": kind, "gigabits": str(gigabits), "cores": str(cores)},
                "by_far_workers",
                {"kind": kind, "gigabits": gigabits, "cores": cores},
                20,
            )
            for kind in self.given.kinds
            for gigabits in GIGABITS
            for cores in CORES[gigabits]
        ]

    def _latency(self) -> list[Turn]:
        return [
            self._simulated(
                {"part": LATENCY, "in_flight": str(in_flight), "prefetch_factor": str(prefetch)},
                "by_latency",
                {"in_flight": in_flight, "prefetch_factor": prefetch},
                len(LATENCIES),
            )
            for in_flight, prefetch in DEPTHS
        ]

    def _requests(self) -> list[Turn]:
        return [
            self._simulated(
                {"part": REQUESTS, "prefetch_factor": str(prefetch)}, "by_requests", {"prefetch_factor": prefetch}, 5
            )
            for prefetch in (2, 4, 8)
        ]

    def _fleet(self) -> list[Turn]:
        return [
            self._simulated(
                {
                    "part": FLEET,
                    "kind": kind,
                    "gigabits": str(gigabits),
                    "trouble": trouble,
                    "schedule": schedule,
                    "on_a_node": str(on_a_node),
                },
                "fleet",
                {
                    "kind": kind,
                    "gigabits": gigabits,
                    "trouble": trouble,
                    "schedule": schedule,
                    "on_a_node": on_a_node,
                    "seconds": self.given.seconds,
                },
                3 * self.given.seconds,
            )
            for kind in self.given.kinds
            for gigabits in GIGABITS
            for trouble, schedule, on_a_node in FLEETS
        ]

    def _silence(self) -> list[Turn]:
        return [
            self._simulated({"part": SILENCE, "noticed": f"{noticed:g}"}, "silence", {"noticed": noticed}, 5)
            for noticed in NOTICED
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        show.print_tables(out, result)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        show.draw(result, path)

    def failed(self, result: dict[str, Any]) -> bool:
        """Without Ray, the other parts are no failure."""
        return any("failure" in each for each in result["measurements"] if each["part"] != CLUSTER or RAY.exists())


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of each part.

    Returns:
        cluster: of each case the batches a second measured (a spread) and simulated, and by how much the simulation
        differs (a share); both are medians, because how long killed actors are away differs from round to round.
        All others do not differ from round to round: lists of the first round's, with the labels of each.
    """
    found = [each for each in measurements if "failure" not in each]
    cluster: dict[str, Any] = {}
    clusters = [each["cases"] for each in found if each["part"] == CLUSTER]
    for case in clusters[0] if clusters else ():
        rates = spread(each[case]["measured"] for each in clusters)
        assert rates is not None
        simulated = [each[case]["simulated"] for each in clusters]
        differs = [each[case]["simulated"] / each[case]["measured"] - 1 for each in clusters]
        cluster[case] = {
            "measured": rates,
            "simulated": statistics.median(simulated),
            "differs": statistics.median(differs),
        }
    first = [each for each in found if each["round"] == 0]
    others = {part: [each for each in first if each["part"] == part] for part in PARTS if part != CLUSTER}
    return {CLUSTER: cluster, **others}
