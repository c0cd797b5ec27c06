"""The time to the first batch: of a new loader, and of a further epoch with new or with persistent workers."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console

from bench.core.cases import CASES
from bench.core.question import Question, Turn, add_start_methods, add_workers, count
from bench.core.results import by_round, print_end, table
from bench.core.spread import shown, spread

LOADERS = ("torch", "shmloader")
CASE = "small-images"
BATCHES = 8  # an epoch
STARTS = {"fork": 0.1, "spawn": 2.0, "forkserver": 2.0}  # seconds, about, that a loader's workers take to start
MOMENTS = {
    "first": "first epoch: iter() to first batch",
    "next": "further epoch: iter() to first batch",
    "next_gap": "further epoch: last batch to first batch",
    "persistent": "persistent workers: iter() to first batch",
    "persistent_gap": "persistent workers: last batch to first batch",
    "boundary": "busy trainer, slow storage, persistent workers: pause",
    "chunked": "the same, with chunk_size",
    "early": "the same, with an early iter()",
    "steady": "busy trainer: any other next()",
}


class Latency(Question):
    name = "latency"
    asks = "time to the first batch, of a new loader and of a further epoch"
    more = f"Batches of {CASES[CASE].label}.  Writes latency.json."

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--restarts", type=count, default=3, help="further epochs in a measurement")
        add_workers(parser)
        add_start_methods(parser)

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "restarts": given.restarts,
            "workers": given.workers,
            "batches": BATCHES,
            "batch": CASES[CASE].label,
        }

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        common = {"case": CASE, "workers": given.workers, "batches": BATCHES, "restarts": given.restarts}
        return [
            Turn(
                {"start_method": method, "subject": loader},
                "bench.latency.measure:waits",
                {**common, "loader": loader, "start_method": method},
                (2 + given.restarts) * STARTS[method],  # each epoch starts workers, but with persistent ones the first
                given.timeout,
            )
            for method in given.start_methods
            for loader in (LOADERS if at % 2 == 0 else LOADERS[::-1])
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {method: summary(method, measurements) for method in self.given.start_methods}

    def show(self, out: Console, result: dict[str, Any]) -> None:
        made = table(
            f"latency; workers: {result['settings']['workers']}, rounds: {result['settings']['rounds']}, "
            f"{result['settings']['batch']}, medians \\[min..max]",
            ["workers by", "moment"],
            ["torch ms", "shmloader ms", "shmloader / torch"],
        )
        for method, moments in result["summary"].items():
            failed = any(m["start_method"] == method and "failure" in m for m in result["measurements"])
            for moment, each in moments.items():
                made.add_row(
                    (method + (" FAILED" if failed else "")) if moment == "first" else "",
                    MOMENTS[moment],
                    *(shown(each[loader], 1e3, all_of_it=True) for loader in LOADERS),
                    shown(each["ratio"], all_of_it=True),
                    end_section=moment == list(MOMENTS)[-1],
                )
        out.print(made)
        print_end(out, result)


def summary(method: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """For each of MOMENTS the seconds of each loader and shmloader's ratio to torch's, as median, min and max.

    A round counts with the median of its epochs.
    """
    rounds = [
        {
            loader: {
                moment: found[moment] if moment == "first" else statistics.median(found[moment]) for moment in MOMENTS
            }
            for loader, found in by.items()
        }
        for by in by_round([found for found in measurements if found["start_method"] == method], "subject")
    ]
    return {
        moment: {
            **{loader: spread(by[loader][moment] for by in rounds if loader in by) for loader in LOADERS},
            "ratio": spread(by["shmloader"][moment] / by["torch"][moment] for by in rounds if len(by) == 2),
        }
        for moment in MOMENTS
    }
