"""The shmloader of this checkout beside that of another one, in turns, in one run: what a change has cost or gained.

What measures is this bench on both sides; only the shmloader that is imported differs.  Both checkouts must be built
for this Python.  A ratio is of two measurements that are neighbours in time, and who goes first changes from round to
round, so that neither what else the machine does nor being first decides.
"""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cases import CASES
from bench.job import PREFETCH
from bench.machine import in_one_line, machine
from bench.results import console, failures, measured, print_lines, write
from bench.spread import Spread, shown, spread

HERE, THERE = "here", "there"
ROOT = Path(__file__).resolve().parent.parent
LEAST = 0.97  # a case whose median is below that, and whose rounds all are below 1, is slower
# Figures, and what a table calls them: ratios of this checkout's to the other one's.
RATIOS = {
    "batches_per_second": "batches/s",
    "trainer_cpu": "trainer CPU a batch",
    "workers_cpu": "workers' CPU a batch",
    "next_p50": "next() p50",
    "next_p99": "next() p99",
}


@dataclass(frozen=True)
class Settings:
    """What the command line asks for: see bench/options.py."""

    name: str
    checkout: Path
    cases: list[str]
    rounds: int
    seconds: float
    workers: int
    start_method: str
    timeout: float


def run(settings: Settings, output: Path) -> int:
    """Measure, print the table, write NAME-against.json; returns 1 where a case is slower or a measurement failed."""
    out = console()
    sides = {HERE: ROOT, THERE: settings.checkout.resolve()}
    for checkout in sides.values():
        of = measured("bench.against:imported", {}, settings.timeout, checkout=checkout)
        if "failure" in of:
            sys.exit(f"--against: the shmloader of {checkout} cannot be imported: {of['failure']}; is it built?")
        if strangers := [file for file in of["files"] if not Path(file).is_relative_to(checkout / "shmloader")]:
            sys.exit(f"--against: the shmloader of {checkout} is not built: it would import {strangers[0]}")
    if sides[HERE] == sides[THERE]:
        print_lines(out, ["--against: both sides are this checkout, so all that differs is noise"], style="yellow")
    measurements = []
    for at in range(settings.rounds):
        for case in settings.cases:
            for side in (HERE, THERE) if at % 2 == 0 else (THERE, HERE):
                out.print(f"round {at + 1} of {settings.rounds}: {case}, {side}", style="dim", highlight=False)
                arguments = {
                    "loader": "shmloader",
                    "case": case,
                    "seconds": settings.seconds,
                    "workers": settings.workers,
                    "start_method": settings.start_method,
                }
                of = measured(
                    "bench.race:throughput",
                    arguments,
                    settings.timeout + 4 * settings.seconds,
                    checkout=sides[side],
                )
                measurements.append({"round": at, "case": case, "subject": side} | of)
    result: dict[str, Any] = {
        "bench": f"{settings.name}-against",
        "machine": machine(),
        "settings": {
            "rounds": settings.rounds,
            "seconds": settings.seconds,
            "workers": settings.workers,
            "prefetch_factor": PREFETCH,
            "start_method": settings.start_method,
        },
        "summary": {case: summary(case, measurements) for case in settings.cases},
        "measurements": measurements,
    }
    write(result, output / f"{settings.name}-against.json")
    _print(out, result)
    failed = any("failure" in of for of in measurements)
    return 1 if failed or any(of["slower"] for of in result["summary"].values()) else 0


def imported() -> dict[str, list[str]]:
    """The files of the shmloader that a measurement imports.

    All of them: an extension that is missing in one checkout may be found in the one that is installed.
    """
    import shmloader

    _ = shmloader.DataLoader  # a module that it is made in, where names are looked up late
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "shmloader"}
    return {"files": sorted(str(Path(module.__file__).resolve()) for module in modules.values() if module.__file__)}


def imported_by_spawned() -> dict[str, list[str]]:
    """The same, of what a spawned worker imports."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(imported)


def summary(case: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        here, there: of each side its RATIOS' figures;
        ratio: of each of RATIOS here to there, of one round;
        slower: whether the median of the batches a second is below LEAST and no round is above 1.
    """
    rounds: dict[int, dict[str, Any]] = {}
    for of in measurements:
        if of["case"] == case and "failure" not in of:
            rounds.setdefault(of["round"], {})[of["subject"]] = of
    pairs = [by for by in rounds.values() if len(by) == 2]
    result: dict[str, Any] = {
        side: {figure: spread(by[side][figure] for by in pairs) for figure in RATIOS} for side in (HERE, THERE)
    }
    result["ratio"] = {
        figure: spread(by[HERE][figure] / by[THERE][figure] for by in pairs if by[THERE][figure]) for figure in RATIOS
    }
    speed: Spread | None = result["ratio"]["batches_per_second"]
    result["slower"] = speed is not None and speed["median"] < LEAST and speed["max"] < 1
    return result


def _print(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    table = Table(
        title=f"{result['bench']}; workers: {settings['workers']} by {settings['start_method']}, rounds: "
        f"{settings['rounds']}; this checkout to the other, medians of the rounds' ratios \\[min..max]",
        title_justify="left",
    )
    table.add_column("case", no_wrap=True)
    table.add_column("batches/s\nhere | there", justify="right", no_wrap=True)
    for heading in RATIOS.values():
        table.add_column(f"{heading}\nhere / there", justify="right", no_wrap=True)
    table.add_column("slower")
    for case, of in result["summary"].items():
        table.add_row(
            CASES[case].label,
            " | ".join(shown(of[side]["batches_per_second"]) for side in (HERE, THERE)),
            *(shown(of["ratio"][figure], all_of_it=True) for figure in RATIOS),
            "SLOWER" if of["slower"] else "no" if of["ratio"]["batches_per_second"] else "failed",
        )
    out.print(table)
    print_lines(out, failures(result["measurements"], "case", "subject"), style="red")
    print_lines(out, [f"SLOWER: the median is below {LEAST}, and every round below 1", in_one_line(result["machine"])])
