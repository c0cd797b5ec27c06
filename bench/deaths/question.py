"""The time from a worker's death to its batch being made again, or to the error that reports it."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.question import Question, Turn, add_start_methods, count
from bench.core.results import failures, in_one_line, print_lines
from bench.core.spread import shown, spread

FIGURES = {
    "claimed": "respawn: death to the batch being begun again",
    "started": "of that, starting a process (a bare one, same method)",
    "beyond": "death to begun again, beyond starting a process",
    "raised": "raise: death to the exception",
}
DEATHS = {"fork": 0.2, "spawn": 5.0, "forkserver": 5.0}  # seconds, about, that a death of each kind takes


class Deaths(Question):
    name = "deaths"
    asks = "time until a killed worker is replaced, or reported"
    more = "Kills the one worker while it makes the batch that is waited for.  Writes deaths.json."

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--times", type=count, default=5, help="deaths of each kind in a measurement")
        add_start_methods(parser)

    def settings(self) -> dict[str, Any]:
        return {"times": self.given.times}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        return [
            Turn(
                {"start_method": method},
                "bench.deaths.measure:deaths",
                {"start_method": method, "times": given.times},
                given.times * DEATHS[method],
                given.timeout,
            )
            for method in given.start_methods
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {method: summary(method, measurements) for method in self.given.start_methods}

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings = result["settings"]
        title = f"deaths; rounds: {settings['rounds']}, medians of {settings['times']} \\[min..max]"
        table = Table(title=title, title_justify="left")
        for heading in ("workers by", "time", "ms"):
            table.add_column(heading, no_wrap=True)
        for method, figures in result["summary"].items():
            for figure, each in figures.items():
                table.add_row(method if figure == "claimed" else "", FIGURES[figure], shown(each, 1e3, all_of_it=True))
        out.print(table)
        print_lines(out, failures(result["measurements"], "start_method"), style="red")
        print_lines(out, [in_one_line(result["machine"])])


def summary(method: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """For each of FIGURES the seconds, as median, min and max of the rounds; a round counts with its median."""
    rounds = [
        {figure: statistics.median(each[figure]) for figure in ("claimed", "started", "raised")}
        for each in measurements
        if each["start_method"] == method and "failure" not in each
    ]
    for each in rounds:
        each["beyond"] = each["claimed"] - each["started"]
    return {figure: spread(each[figure] for each in rounds) for figure in FIGURES}
