"""DI-engine's experiment: job-style and batch-style loaders, where loading takes long and little CPU.

Each cell is a case, a flow and a loader.  Within a round the loaders of a case and flow take turns, and who goes first
changes from round to round.  See profiles.py for the numbers and measure.py for what is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core.loaders import DI_ENGINE
from bench.core.question import Question, Turn, add_choice, number
from bench.core.results import print_lines
from bench.core.spread import spread
from bench.experiment import show
from bench.experiment.measure import LOADERS, SERIAL, why_not
from bench.experiment.profiles import FLOWS, PROFILES, WORKERS

IGNORED = 5  # first batches of a cell
SERIAL_IGNORED = 1  # the same without workers: nothing is ahead of anything
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


class Experiment(Question):
    name = "experiment"
    asks = "waiting for batches whose samples take long, against an inference that takes about as long"
    more = (
        "The experiment that DI-engine's AsyncDataLoader documents, all its times being sleeps: 4 cases x 3 flows x 6 "
        "loaders with 8 workers.  Writes experiment.json and experiment.png.  Loaders: "
        + "; ".join(f"{name}: {what}" for name, what in LOADERS.items())
    )
    rounds = 1

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--cases", tuple(PROFILES), "what is loaded")
        add_choice(parser, "--flows", tuple(FLOWS), "how fast it is wanted")
        add_choice(parser, "--loaders", tuple(LOADERS), "what loads it")
        parser.add_argument("--scale", type=number(float, 0.001), default=1.0, help="factor of all times")
        parser.add_argument(
            "--iterations", type=number(int, IGNORED + 1), default=50, help=f"batches; the first {IGNORED} do not count"
        )
        parser.add_argument(
            "--serial-iterations",
            type=number(int, SERIAL_IGNORED + 1),
            default=7,
            help="the same without workers; the first does not count",
        )

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        whys = {(case, loader): why_not(loader, PROFILES[case]) for case in given.cases for loader in given.loaders}
        self._skipped = {each: why for each, why in whys.items() if why}
        self._overshoots = dict.fromkeys(given.cases, 0.0)  # seconds that a sleep is too long

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "scale": given.scale,
            "iterations": given.iterations,
            "ignored": IGNORED,
            "serial_iterations": given.serial_iterations,
            "serial_ignored": SERIAL_IGNORED,
            "workers": WORKERS,
        }

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Learn how much too long sleeps are."""
        for (case, loader), why in self._skipped.items():
            print_lines(out, [f"skipped: {case}, {loader}: {why}"], style="yellow")
        for case in self.given.cases:
            seconds = PROFILES[case].sample_seconds(self.given.scale)
            arguments = {"seconds": seconds, "workers": WORKERS, "at_least": CALIBRATING}
            timeout = self.given.timeout + 10 * seconds
            measured = Turn({}, "bench.experiment.measure:overshoot", arguments, CALIBRATING, timeout).measure()
            if "failure" in measured:
                print_lines(
                    out, [f"{case}: how much too long sleeps are is not known: {measured['failure']}"], style="red"
                )
                continue
            over = self._overshoots[case] = float(measured["overshoot"])
            print_lines(out, [f"{case}: a sleep of {seconds * 1e3:.4g} ms is {over * 1e6:.0f} us too long"], "dim")
        yield

    def turns(self, at: int) -> list[Turn]:
        """Of each case and flow another loader first in each round."""
        groups = [
            [(case, flow, loader) for loader in self.given.loaders if (case, loader) not in self._skipped]
            for case in self.given.cases
            for flow in self.given.flows
        ]
        return [
            self._turn(cell)
            for group in groups
            for cell in (group[at % len(group) :] + group[: at % len(group)] if group else [])
        ]

    def _turn(self, cell: Cell) -> Turn:
        case, flow, loader = cell
        settings, serial = self.settings(), "serial_" if loader == SERIAL else ""
        arguments = {
            "loader": loader,
            "case": case,
            "flow": flow,
            "scale": settings["scale"],
            "iterations": settings[f"{serial}iterations"],
            "ignored": settings[f"{serial}ignored"],
        }
        length = expected(cell, settings)
        return Turn(
            {"case": case, "flow": flow, "subject": loader},
            "bench.experiment.measure:cell",
            arguments,
            length,
            self.given.timeout + 5 * length,
            python=str(DI_ENGINE) if loader == "di-engine" else sys.executable,
            gives_up=True,  # what hung once hangs again, and costs its whole time
        )

    def also(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "notes": NOTES,
            "overshoot": self._overshoots,
            "skipped": [{"case": case, "subject": loader, "why": why} for (case, loader), why in self._skipped.items()],
        }

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        given = self.given
        return summary(given.cases, given.flows, given.loaders, self.settings(), self._overshoots, measurements)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        show.print_tables(out, result)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        show.draw(result, path)


def expected(cell: Cell, settings: dict[str, Any]) -> float:
    """Seconds that a cell takes if its loader reaches the limit."""
    case, flow, loader = cell
    what, scale = PROFILES[case], settings["scale"]
    data = what.data_seconds(scale)
    if loader == SERIAL:
        return float(settings["serial_iterations"] * (data + what.inference_seconds(flow, scale)))
    # A batch before the first one comes, and one that is under way when the loader is closed.
    return float(2 * data + settings["iterations"] * what.limit(flow, scale))


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
            result[case][flow] = found = {
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
                found["loaders"][loader] = {
                    **{figure: spread(m[figure] for m in rounds) for figure in ("total", "blocked", "first", "touch")},
                    "late": max((m["late"] for m in rounds), default=None),
                    "distance": spread(m["total"] / limit - 1 for m in rounds),
                    "distance_with_overshoot": spread(m["total"] / real - 1 for m in rounds),
                }
    return result
