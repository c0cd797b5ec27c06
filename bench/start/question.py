"""The time that workers take to start: by fork, fork server, spawn and template; small and large datasets."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.question import Question, Turn, count
from bench.core.results import failures, in_one_line, print_lines
from bench.core.spread import shown, spread

WAYS = {"fork": 0.3, "forkserver": 6.0, "spawn": 6.0, "template": 3.0, "template, frozen": 3.0}  # seconds, about
MOMENTS = {
    "first": "first epoch: first batch",
    "epoch": "first epoch: all of it",
    "next": "further epoch: first batch",
    "next_epoch": "further epoch: all of it",
}


class Start(Question):
    name = "start"
    asks = "how long do workers take to start, by fork, fork server, spawn and template?"
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
                WAYS[way] + (given.restarts * WAYS[way] if not way.startswith("template") else 0),
                given.timeout,
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
                found[case] = {way: _of([m for m in measurements if _is(m, case, way)]) for way in self.given.ways}
        return found

    def show(self, out: Console, result: dict[str, Any]) -> None:
        table = Table(
            title=f"start; rounds: {result['settings']['rounds']}, medians \\[min..max] in ms", title_justify="left"
        )
        for heading in ("dataset, workers", "workers by", *MOMENTS.values()):
            table.add_column(heading, justify="left" if heading in ("dataset, workers", "workers by") else "right")
        for case, ways in result["summary"].items():
            for way, moments in ways.items():
                first = way == next(iter(ways))
                figures = (shown(moments[moment], 1e3, all_of_it=True) for moment in MOMENTS)
                table.add_row(case if first else "", way, *figures, end_section=way == list(ways)[-1])
        out.print(table)
        print_lines(out, failures(result["measurements"], "case", "subject"), style="red")
        print_lines(out, [in_one_line(result["machine"])])


def _case(megabytes: int, workers: int) -> str:
    return f"{f'{megabytes} MB' if megabytes else 'small'}, {workers} workers"


def _is(measurement: dict[str, Any], case: str, way: str) -> bool:
    return measurement["case"] == case and measurement["subject"] == way and "failure" not in measurement


def _of(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        moment: spread(
            one[moment] if isinstance(one[moment], float) else statistics.median(one[moment]) for one in measurements
        )
        for moment in MOMENTS
    }
