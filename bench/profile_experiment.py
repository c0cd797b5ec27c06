"""The profile experiment: job-style and batch-style loaders, where loading takes long and little CPU.

Each cell is a case, a flow and a loader.  Within a round the loaders of a case and flow take turns, and who goes first
changes from round to round.  See experiment.py for the numbers and profile_measure.py for what is timed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import di_engine
from bench.experiment import PROFILES, WORKERS
from bench.machine import machine
from bench.profile_loaders import SERIAL, why_not
from bench.profile_picture import draw
from bench.profile_tables import print_tables
from bench.results import console, measured, print_lines, write
from bench.spread import spread

IGNORED = 5  # first batches of a cell
SERIAL_IGNORED = 1  # the same without workers: nothing is ahead of anything
STARTING = 4.0  # seconds, about: the imports of a cell's process and the start of its workers
CALIBRATING = 0.5  # seconds of sleeping, at least, to learn how much too long a sleep is
NOTES = (
    "limit: max(D / N, I) a step, D being what a batch takes one worker, N the workers and I the inference; with the "
    f"overshoot: had all sleeps of the workers lasted as much too long as those of {WORKERS} processes that did no "
    "more, before the rounds began",
    "a total may be below its limit by what was loaded ahead before counting began, and above it by what comes in "
    f"bursts: where each worker makes a batch of its own, {WORKERS} come every D",
    "samples are returned by reference; DI-engine's large parts, once in shared memory, travel on without being copied",
)

Cell = tuple[str, str, str]  # a case, a flow, a loader


def run(
    cases: list[str],
    flows: list[str],
    loaders: list[str],
    rounds: int,
    scale: float,
    iterations: int,
    serial_iterations: int,
    timeout: float,
    output: Path,
) -> int:
    """Measure, print the tables, write profile_experiment.json and .png; returns 1 where a measurement failed."""
    out = console()
    settings: dict[str, Any] = {
        "rounds": rounds,
        "scale": scale,
        "iterations": iterations,
        "ignored": IGNORED,
        "serial_iterations": serial_iterations,
        "serial_ignored": SERIAL_IGNORED,
        "workers": WORKERS,
    }
    skipped = {(case, loader): why for case in cases for loader in loaders if (why := why_not(loader, PROFILES[case]))}
    for (case, loader), why in skipped.items():
        print_lines(out, [f"skipped: {case}, {loader}: {why}"], style="yellow")
    cells = [
        (case, flow, loader) for case in cases for flow in flows for loader in loaders if (case, loader) not in skipped
    ]
    whole = rounds * sum(expected(cell, settings) for cell in cells)
    print_lines(out, [f"{rounds} x {len(cells)} cells at scale {scale:g}: about {whole / 60:.0f} minutes"])
    overshoots = {case: _overshoot(out, case, scale, timeout) for case in cases}
    measurements = _measure(out, cells, settings, timeout)
    result: dict[str, Any] = {
        "bench": "profile_experiment",
        "machine": machine(),
        "settings": settings,
        "notes": NOTES,
        "overshoot": overshoots,
        "skipped": [{"case": case, "subject": loader, "why": why} for (case, loader), why in skipped.items()],
        "summary": summary(cases, flows, loaders, settings, overshoots, measurements),
        "measurements": measurements,
    }
    write(result, output / "profile_experiment.json")
    draw(result, output / "profile_experiment.png")
    print_tables(out, result)
    return 1 if any("failure" in of for of in measurements) else 0


def expected(cell: Cell, settings: dict[str, Any]) -> float:
    """Seconds that a cell takes if its loader reaches the limit."""
    case, flow, loader = cell
    what, scale = PROFILES[case], settings["scale"]
    data = what.data_seconds(scale)
    if loader == SERIAL:
        return float(STARTING + settings["serial_iterations"] * (data + what.inference_seconds(flow, scale)))
    # A batch before the first one comes, and one that is under way when the loader is closed.
    return float(STARTING + 2 * data + settings["iterations"] * what.limit(flow, scale))


def _overshoot(out: Console, case: str, scale: float, timeout: float) -> float:
    seconds = PROFILES[case].sample_seconds(scale)
    arguments = {"seconds": seconds, "workers": WORKERS, "at_least": CALIBRATING}
    of = measured("bench.sleeping:overshoot", arguments, timeout + 10 * seconds)
    if "failure" in of:
        print_lines(out, [f"{case}: how much too long sleeps are is not known: {of['failure']}"], style="red")
        return 0.0
    over = float(of["overshoot"])
    print_lines(out, [f"{case}: a sleep of {seconds * 1e3:.4g} ms is {over * 1e6:.0f} us too long"], style="dim")
    return over


def _measure(out: Console, cells: list[Cell], settings: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
    measurements: list[dict[str, Any]] = []
    failed: set[Cell] = set()  # what hung once hangs again, and costs its whole time
    for at in range(settings["rounds"]):
        for cell in _turns(cells, at):
            case, flow, loader = named = cell
            if named in failed:
                continue
            out.print(f"round {at + 1} of {settings['rounds']}: {', '.join(named)}", style="dim", highlight=False)
            serial = "serial_" if loader == SERIAL else ""
            arguments = {
                "loader": loader,
                "case": case,
                "flow": flow,
                "scale": settings["scale"],
                "iterations": settings[f"{serial}iterations"],
                "ignored": settings[f"{serial}ignored"],
            }
            python = str(di_engine.PYTHON) if loader == "di-engine" else sys.executable
            of = measured("bench.profile_measure:cell", arguments, timeout + 5 * expected(cell, settings), python)
            if "failure" in of:
                failed.add(named)
                print_lines(out, [f"{', '.join(named)}: {of['failure']}; not tried again"], style="red")
            measurements.append({"round": at, "case": case, "flow": flow, "subject": loader} | of)
    return measurements


def _turns(cells: list[Cell], at: int) -> list[Cell]:
    """The cells in their order, but of each case and flow another loader first in each round."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell[:2], []).append(cell)
    return [cell for group in groups.values() for cell in group[at % len(group) :] + group[: at % len(group)]]


def summary(
    cases: list[str],
    flows: list[str],
    loaders: list[str],
    settings: dict[str, Any],
    overshoots: dict[str, float],
    measurements: list[dict[str, Any]],
) -> dict[str, Any]:
    """The figures of each case and flow over all rounds, each spread being median, min and max (None: no round).

    Returns, by case and flow:
        data, inference: seconds, D and I;
        limit, limit_with_overshoot: seconds for the counted steps;
        loaders: of each its total (seconds; of as many steps, also where fewer were counted), distance and
        distance_with_overshoot (parts of the limit that it is above), blocked (part of the total), first (seconds),
        touch (seconds a step) and late (steps).
    """
    scale, steps = settings["scale"], settings["iterations"] - settings["ignored"]
    result: dict[str, Any] = {}
    for case in cases:
        what = PROFILES[case]
        result[case] = {}
        for flow in flows:
            limit = steps * what.limit(flow, scale)
            real = steps * what.limit(flow, scale, overshoots[case])
            result[case][flow] = of = {
                "data": what.data_seconds(scale),
                "inference": what.inference_seconds(flow, scale),
                "limit": limit,
                "limit_with_overshoot": real,
                "loaders": {},
            }
            for loader in loaders:
                rounds = [
                    m | {"total": m["total"] * steps / m["counted"], "blocked": m["blocked"] / m["total"]}
                    for m in measurements
                    if (m["case"], m["flow"], m["subject"]) == (case, flow, loader) and "failure" not in m
                ]
                of["loaders"][loader] = {
                    **{figure: spread(m[figure] for m in rounds) for figure in ("total", "blocked", "first", "touch")},
                    "late": max((m["late"] for m in rounds), default=None),
                    "distance": spread(m["total"] / limit - 1 for m in rounds),
                    "distance_with_overshoot": spread(m["total"] / real - 1 for m in rounds),
                }
    return result
