"""The time that workers take to start: by fork, fork server and spawn; small and large datasets."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.loaders import missing
from bench.core.question import Question, Turn, count
from bench.core.results import by_round, print_end
from bench.core.spread import shown, spread
from bench.start.measure import ARENA

# By way, seconds that workers take to start, about.
WAYS = {"fork": 0.3, "forkserver": 6.0, "forkserver, frozen": 3.0, "spawn": 6.0, ARENA: 3.0}
MOMENTS = {
    "first": "first epoch: first batch",
    "first_cpu": "first epoch: processor time",
    "epoch": "first epoch: all of it",
    "next": "further epoch: first batch",
    "next_epoch": "further epoch: all of it",
    "again": "further loader: first batch",
    "replaced": "killed worker: its batch",
}


class Start(Question):
    name = "start"
    asks = "how long do workers take to start, by fork, fork server and spawn?"
    more = "Epochs of 320 samples, whose workers do not persist; a dataset of paths.  Writes start.json."
    rounds = 3

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--restarts", type=count, default=3, help="further epochs in a measurement")
        parser.add_argument("--workers", type=count, nargs="+", default=[2, 8], help="numbers of workers")
        parser.add_argument("--megabytes", type=int, nargs="+", default=[0, 128], help="sizes of the dataset")
        parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="ways to start workers")

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {"restarts": given.restarts, "workers": given.workers, "megabytes": given.megabytes}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        return [
            Turn(
                {"case": _case(megabytes, workers), "subject": way},
                "bench.start.measure:start",
                {"way": way, "megabytes": megabytes, "workers": workers, "restarts": given.restarts},
                WAYS[way] * (1 if way in ("forkserver, frozen", ARENA) else 2 + 2 * given.restarts),
                given.timeout,
                failure=missing(("spdl.pipeline",)) if way == ARENA else "",
            )
            for megabytes in given.megabytes
            for workers in given.workers
            for way in (given.ways if at % 2 == 0 else given.ways[::-1])
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        """For each case and way the seconds of MOMENTS; a round counts with the median of its epochs."""
        found: dict[str, Any] = {}
        for megabytes in self.given.megabytes:
            for workers in self.given.workers:
                case = _case(megabytes, workers)
                rounds = by_round([each for each in measurements if each["case"] == case], "subject")
                found[case] = {way: _of(rounds, way) for way in self.given.ways}
        return found

    def show(self, out: Console, result: dict[str, Any]) -> None:
        table = Table(
            title=f"start; rounds: {result['settings']['rounds']}, medians \\[min..max] in ms", title_justify="left"
        )
        table.add_column("dataset, workers")
        table.add_column("workers by")
        for heading in (*MOMENTS.values(), f"first batch\nto {ARENA}", f"processor time\nto {ARENA}"):
            table.add_column(heading, justify="right")
        for case, ways in result["summary"].items():
            for way, moments in ways.items():
                first = way == next(iter(ways))
                figures = (shown(moments[moment], 1e3, all_of_it=True) for moment in MOMENTS)
                ratios = (shown(moments[ratio], all_of_it=True) for ratio in ("ratio", "cpu_ratio"))
                table.add_row(case if first else "", way, *figures, *ratios, end_section=way == list(ways)[-1])
        out.print(table)
        print_end(out, result)

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether something failed; that SPDL is not installed is no failure."""
        return any("failure" in found for found in result["measurements"] if found["subject"] != ARENA)


def _case(megabytes: int, workers: int) -> str:
    return f"{f'{megabytes} MB' if megabytes else 'small'}, {workers} workers"


def _of(rounds: list[dict[str, dict[str, Any]]], way: str) -> dict[str, Any]:
    """Of one case and way each of MOMENTS, and the ratios of the first batch to the arena's of the same round."""
    mine = [by[way] for by in rounds if way in by]
    figures = {moment: spread(_median(one[moment]) for one in mine if moment in one) for moment in MOMENTS}
    both = [by for by in rounds if way in by and ARENA in by]
    ratios = {moment: spread(by[way][moment] / by[ARENA][moment] for by in both) for moment in ("first", "first_cpu")}
    return figures | {"ratio": ratios["first"], "cpu_ratio": ratios["first_cpu"]}


def _median(figure: float | list[float]) -> float:
    return figure if isinstance(figure, float) else statistics.median(figure)
