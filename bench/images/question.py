"""JPEG files as a network is trained on them: how quickly each way of decoding makes rows of them, and how well."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.question import Question, Turn, add_choice, add_data, seconds
from bench.core.results import by_round, versions
from bench.core.spread import spread
from bench.images import show
from bench.images.methods import EXACT, FAST, METHODS, PIL, ROWS

MADE = 96  # files
FIGURES = ("images_per_cpu_second", "ratio", "difference", "pooled", "worst")


class Images(Question):
    name = "images"
    asks = "JPEG files to rows of 3x224x224: images a CPU second of each decoder, and how near to PIL"
    more = (
        "RandomResizedCrop and flips, the same boxes for all.  A decoder that is not installed is named and skipped.  "
        "Writes images.json and images.png."
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--methods", tuple(METHODS), "which ways of decoding to measure")
        parser.add_argument("--seconds", type=seconds, default=3.0, help="length of one measurement")
        add_data(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._folder = ""
        self._files = ""  # what they are, in words

    def settings(self) -> dict[str, Any]:
        return {"seconds": self.given.seconds, "files": self._files}

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the files, where none are given."""
        with jpegs.given_or_made(self.given.data, MADE) as (self._folder, found):
            self._files = jpegs.described(found, self.given.data)
            yield

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        first = at % len(given.methods)
        return [
            Turn(
                {"subject": method},
                "bench.images.measure:decode",
                {"method": method, "folder": self._folder, "seconds": given.seconds},
                (1.5 if method == PIL else 4) * given.seconds + 2,  # PIL takes four times as long as the quickest
                given.timeout + 12 * given.seconds,
                gives_up=method not in (PIL, EXACT, FAST, ROWS),
                failure=METHODS[method].why_not(),
            )
            for method in given.methods[first:] + given.methods[:first]
        ]

    def also(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {"versions": versions(name for method in self.given.methods for name in METHODS[method].distributions)}

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether ours failed, or PIL: what becomes of a peer is a result."""
        return any("failure" in each for each in result["measurements"] if each["subject"] in (PIL, EXACT, FAST, ROWS))

    def show(self, out: Console, result: dict[str, Any]) -> None:
        show.print_table(out, result)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        show.draw(result, path)


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each method its FIGURES over all rounds, as median, min and max; or `failure`, why there are none."""
    rounds = by_round(measurements, "subject")
    reasons = {each["subject"]: each["failure"] for each in measurements if "failure" in each}
    measured = {each["subject"] for each in measurements}
    return {
        method: {"failure": reasons[method]}
        if method in reasons
        else {
            name: spread(by[method][name] for by in rounds if method in by and name in by[method]) for name in FIGURES
        }
        for method in METHODS
        if method in measured
    }
