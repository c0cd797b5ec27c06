"""The time to the first batch: of a new loader, and of a further epoch with new or with persistent workers."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cases import CASES
from bench.machine import in_one_line, machine
from bench.results import console, failures, measured, print_lines, write
from bench.spread import shown, spread
from bench.transport import LOADERS

CASE = "small-images"
BATCHES = 8  # an epoch
MOMENTS = {
    "first": "first epoch: iter() to first batch",
    "next": "further epoch: iter() to first batch",
    "next_gap": "further epoch: last batch to first batch",
    "persistent": "persistent workers: iter() to first batch",
    "persistent_gap": "persistent workers: last batch to first batch",
}


def run(start_methods: list[str], rounds: int, restarts: int, workers: int, timeout: float, output: Path) -> int:
    """Measure, print the table, write latency.json; returns 1 where a measurement failed."""
    out = console()
    measurements = []
    for at in range(rounds):
        for method in start_methods:
            for loader in LOADERS if at % 2 == 0 else LOADERS[::-1]:
                out.print(f"round {at + 1} of {rounds}: {method}, {loader}", style="dim", highlight=False)
                arguments = {
                    "loader": loader,
                    "case": CASE,
                    "workers": workers,
                    "start_method": method,
                    "batches": BATCHES,
                    "restarts": restarts,
                }
                measurements.append(
                    {"round": at, "start_method": method, "subject": loader}
                    | measured("bench.measure:waits", arguments, timeout)
                )
    result = {
        "bench": "latency",
        "machine": machine(),
        "settings": {
            "rounds": rounds,
            "restarts": restarts,
            "workers": workers,
            "batches": BATCHES,
            "batch": CASES[CASE].label,
        },
        "summary": {method: summary(method, measurements) for method in start_methods},
        "measurements": measurements,
    }
    write(result, output / "latency.json")
    _print(out, result)
    return 1 if any("failure" in of for of in measurements) else 0


def summary(method: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """For each of MOMENTS the seconds of each loader and shmloader's ratio to torch's, as median, min and max.

    A round counts with the median of its epochs.
    """
    rounds: dict[int, dict[str, Any]] = {}
    for of in measurements:
        if of["start_method"] == method and "failure" not in of:
            rounds.setdefault(of["round"], {})[of["subject"]] = {
                moment: of[moment] if moment == "first" else statistics.median(of[moment]) for moment in MOMENTS
            }
    return {
        moment: {
            **{loader: spread(by[loader][moment] for by in rounds.values() if loader in by) for loader in LOADERS},
            "ratio": spread(by["shmloader"][moment] / by["torch"][moment] for by in rounds.values() if len(by) == 2),
        }
        for moment in MOMENTS
    }


def _print(out: Console, result: dict[str, Any]) -> None:
    table = Table(
        title=f"latency; workers: {result['settings']['workers']}, rounds: {result['settings']['rounds']}, "
        f"{result['settings']['batch']}, medians \\[min..max]",
        title_justify="left",
    )
    table.add_column("workers by")
    table.add_column("moment", no_wrap=True)
    for heading in ("torch ms", "shmloader ms", "shmloader / torch"):
        table.add_column(heading, justify="right", no_wrap=True)
    for method, moments in result["summary"].items():
        failed = any(m["start_method"] == method and "failure" in m for m in result["measurements"])
        for moment, of in moments.items():
            table.add_row(
                (method + (" FAILED" if failed else "")) if moment == "first" else "",
                MOMENTS[moment],
                *(shown(of[loader], 1e3, all_of_it=True) for loader in LOADERS),
                shown(of["ratio"], all_of_it=True),
                end_section=moment == list(MOMENTS)[-1],
            )
    out.print(table)
    print_lines(out, failures(result["measurements"], "start_method", "subject"), style="red")
    print_lines(out, [in_one_line(result["machine"])])
