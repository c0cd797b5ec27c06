"""A loader's state after each step, and a resume late in a long epoch: beside torchdata's StatefulDataLoader."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console

from bench.core.loaders import missing
from bench.core.question import Question, Turn, add_start_methods, add_workers, count, number, seconds
from bench.core.results import print_end, table
from bench.core.spread import shown, spread

STATEFUL, OURS = "stateful", "shmloader"
LOADERS = (STATEFUL, OURS)
SAMPLERS = ("sequential", "random", "batch", "distributed")  # as in measure.py
STATES, RESUMES = "states", "resumes"  # of the two functions there
OF_STATES = {
    "first_state": ("first state_dict(), us", 1e6),
    "state": ("state_dict() in an epoch, us", 1e6),
    "step_with": ("next() and state_dict(), us", 1e6),
    "step_without": ("next() without, us", 1e6),
    "state_bytes": ("size of the state, bytes", 1),
}
OF_RESUMES = {
    "fresh": ("fresh start to first batch, s", 1),
    "resumed": ("resume to first batch, s", 1),
    "later": ("resumed later than fresh, s", 1),
}


class Resume(Question):
    name = "resume"
    asks = "what a state after each step costs, and how long a resume takes, beside torchdata's loader"
    more = "Batches of 256 numbers, so that nothing but the loaders takes time.  Writes resume.json."

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--seconds", type=seconds, default=2.0, help="of taking states, for each sampler")
        parser.add_argument("--samples", type=count, default=1_280_000, help="in the epoch that is gone on with")
        parser.add_argument("--part", type=number(float, 0), default=0.9, help="of it that has been served")
        parser.add_argument("--restarts", type=count, default=3, help="of either kind in a measurement")
        add_workers(parser)
        add_start_methods(parser)

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {"workers": given.workers, "samples": given.samples, "part": given.part, "restarts": given.restarts}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        absent = {STATEFUL: missing(("torchdata",)), OURS: ""}
        order = LOADERS if at % 2 == 0 else LOADERS[::-1]

        def turn(label: str, by: str, loader: str, arguments: dict[str, Any], takes: float) -> Turn:
            return Turn(
                {"of": label, "by": by, "subject": loader},
                f"bench.resume.measure:{label}",
                {"loader": loader, "workers": given.workers, **arguments},
                takes,
                given.timeout,
                failure=absent[loader],
            )

        by_sampler = [
            turn(STATES, sampler, loader, {"sampler": sampler, "seconds": given.seconds}, given.seconds + 1)
            for sampler in SAMPLERS
            for loader in order
        ]
        long_epoch = {"samples": given.samples, "part": given.part, "times": given.restarts}
        return by_sampler + [
            turn(RESUMES, method, loader, {**long_epoch, "start_method": method}, 10 + 4 * given.restarts)
            for method in given.start_methods
            for loader in order
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            STATES: {by: summary(OF_STATES, STATES, by, measurements) for by in SAMPLERS},
            RESUMES: {by: summary(OF_RESUMES, RESUMES, by, measurements) for by in self.given.start_methods},
        }

    def show(self, out: Console, result: dict[str, Any]) -> None:
        set_up = result["settings"]
        for part, figures, by in ((STATES, OF_STATES, "sampler"), (RESUMES, OF_RESUMES, "workers by")):
            about = f", {set_up['part']:.0%} of {set_up['samples']:,} samples served" if part == RESUMES else ""
            made = table(
                f"{part}; workers: {set_up['workers']}, rounds: {set_up['rounds']}{about}, medians \\[min..max]",
                [by, "figure"],
                LOADERS,
            )
            for each, found in result["summary"][part].items():
                for figure, (label, scale) in figures.items():
                    made.add_row(
                        each if figure == next(iter(figures)) else "",
                        label,
                        *(shown(found[loader][figure], scale, all_of_it=True) for loader in LOADERS),
                        end_section=figure == list(figures)[-1],
                    )
            out.print(made)
        print_end(out, result)

    def failed(self, result: dict[str, Any]) -> bool:
        return any("failure" in each and each["subject"] == OURS for each in result["measurements"])


def summary(figures: dict[str, Any], label: str, by: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Each figure of each loader, as median, min and max of the rounds.  A round counts with its median."""
    found: dict[str, list[dict[str, float]]] = {loader: [] for loader in LOADERS}
    for each in measurements:
        if (each["of"], each["by"]) == (label, by) and "failure" not in each:
            found[each["subject"]].append(_figures(each))
    return {
        loader: {figure: spread(each[figure] for each in rounds) for figure in figures}
        for loader, rounds in found.items()
    }


def _figures(measured: dict[str, Any]) -> dict[str, float]:
    once = {
        key: statistics.median(value) if isinstance(value, list) else value
        for key, value in measured.items()
        if isinstance(value, (int, float, list))
    }
    return once | ({"later": once["resumed"] - once["fresh"]} if "resumed" in once else {})
