"""Ways of using a loader, each with torch's and ours in turn, and with that of another checkout: time and memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core.against import add_against, insist
from bench.core.question import Question, Turn, add_choice
from bench.core.results import ROOT, by_round, commit, failures, machine, print_lines
from bench.core.spread import spread
from bench.core.warm import Warm, warm
from bench.core.watched import Watched
from bench.patterns import page
from bench.patterns.measure import LOADERS
from bench.patterns.table import PATTERNS

FIGURES = ("wall", "cpu", "memory", "growth")
TAKES = 1.5  # seconds of a measurement, about


class Patterns(Question):
    name = "patterns"
    asks = "is shmloader slower or heavier than torch's loader in any of many ways of using it?"
    more = "Writes patterns.json, and with --into bench/results also the tables of docs/patterns.md."
    compares_checkouts = True

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--only", tuple(PATTERNS), "these patterns")
        add_against(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        checkouts = {"torch": ROOT, "before": given.against, "shmloader": ROOT}
        self.checkouts = {subject: checkout for subject, checkout in checkouts.items() if checkout}
        self.warm: dict[str, Warm] = {}

    def why_not(self) -> list[str]:
        if self.given.against:
            insist(self.checkouts.values(), self.given.timeout)
        return []

    def settings(self) -> dict[str, Any]:
        return {"subjects": list(self.checkouts)}

    def machine(self) -> dict[str, str | int]:
        return machine() | ({"against": commit(self.given.against)} if self.given.against else {})

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        with ExitStack() as stack:
            for subject, checkout in self.checkouts.items():
                modules = ("bench.patterns.measure", LOADERS[subject])
                self.warm[subject] = stack.enter_context(warm(*modules, checkout=checkout))
            yield

    def turns(self, at: int) -> list[Turn]:
        first, subjects, function = at % len(self.checkouts), list(self.checkouts), "bench.patterns.measure:measure"
        return [
            Watched(labels, function, labels, TAKES, self.given.timeout, warm=self.warm)
            for pattern in self.given.only
            for labels in ({"pattern": pattern, "subject": each} for each in subjects[first:] + subjects[:first])
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {pattern: summary(pattern, list(self.checkouts), measurements) for pattern in self.given.only}

    def show(self, out: Console, result: dict[str, Any]) -> None:
        print_lines(out, page.tables(result))
        print_lines(out, failures(result["measurements"]), style="red")

    def draw(self, result: dict[str, Any], path: Path) -> None:
        """Its picture is a page."""
        if path.parent.resolve() == page.RESULT.parent:
            page.write()


def summary(pattern: str, subjects: list[str], measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each subject its FIGURES, and `ratio`: those to torch's of the same round.  Each is median, min and max."""
    rounds = by_round([found for found in measurements if found["pattern"] == pattern], "subject")
    result: dict[str, Any] = {}
    for subject in subjects:
        pairs = [(by[subject], by["torch"]) for by in rounds if subject in by and "torch" in by]
        result[subject] = {figure: spread(ours[figure] for ours, _ in pairs) for figure in FIGURES}
        result[subject]["ratio"] = {
            figure: spread(us[figure] / it[figure] for us, it in pairs) for figure in FIGURES[:3]
        }
    return result
