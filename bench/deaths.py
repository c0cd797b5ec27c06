"""The time from a worker's death to its batch being made again, or to the error that reports it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.machine import in_one_line, machine
from bench.results import console, failures, measured, print_lines, write
from bench.spread import shown, spread

FIGURES = {
    "claimed": "respawn: death to the batch being begun again",
    "started": "of that, starting a process (a bare one, same method)",
    "beyond": "death to begun again, beyond starting a process",
    "raised": "raise: death to the exception",
}


def run(start_methods: list[str], rounds: int, times: int, timeout: float, output: Path) -> int:
    """Measure, print the table, write deaths.json; returns 1 where a measurement failed."""
    out = console()
    measurements = []
    for at in range(rounds):
        for method in start_methods:
            out.print(f"round {at + 1} of {rounds}: {method}", style="dim", highlight=False)
            arguments = {"start_method": method, "times": times}
            measurements.append(
                {"round": at, "start_method": method} | measured("bench.measure:deaths", arguments, timeout)
            )
    result: dict[str, Any] = {
        "bench": "deaths",
        "machine": machine(),
        "settings": {"rounds": rounds, "times": times},
        "summary": {method: summary(method, measurements) for method in start_methods},
        "measurements": measurements,
    }
    write(result, output / "deaths.json")
    table = Table(title=f"deaths; rounds: {rounds}, medians of {times} \\[min..max]", title_justify="left")
    for heading in ("workers by", "time", "ms"):
        table.add_column(heading, no_wrap=True)
    for method, figures in result["summary"].items():
        for figure, of in figures.items():
            table.add_row(method if figure == "claimed" else "", FIGURES[figure], shown(of, 1e3, all_of_it=True))
    out.print(table)
    print_lines(out, failures(measurements, "start_method"), style="red")
    print_lines(out, [in_one_line(result["machine"])])
    return 1 if any("failure" in of for of in measurements) else 0


def summary(method: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """For each of FIGURES the seconds, as median, min and max of the rounds; a round counts with its median."""
    rounds = [
        {figure: statistics.median(of[figure]) for figure in ("claimed", "started", "raised")}
        for of in measurements
        if of["start_method"] == method and "failure" not in of
    ]
    for of in rounds:
        of["beyond"] = of["claimed"] - of["started"]
    return {figure: spread(of[figure] for of in rounds) for figure in FIGURES}
