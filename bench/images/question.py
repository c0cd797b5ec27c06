"""JPEG files as a network is trained on them: how quickly each way of decoding makes rows of them, and how well."""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.loaders import OURS, TORCH
from bench.core.question import Question, Turn, add_choice, add_workers, count, seconds
from bench.core.spread import Spread, spread
from bench.images import show
from bench.images.methods import EXACT, FAST, METHODS, PIL, ROWS

MADE = 96  # files
LOADED = {  # what is loaded from end to end: by which loader, decoded in which way
    "torch-pil": (TORCH, PIL),
    "torch-simplejpeg": (TORCH, "simplejpeg"),
    "torch-fast": (TORCH, FAST),
    "shmloader-pil": (OURS, PIL),
    "shmloader-simplejpeg": (OURS, "simplejpeg"),
    "shmloader-exact": (OURS, EXACT),
    "shmloader-fast": (OURS, FAST),
    "shmloader-rows": (OURS, ROWS),
}
SLOWEST = "torch-pil"  # what the others are compared with
DECODE, LOAD = "decode", "load"
FIGURES = ("images_per_cpu_second", "images_per_second", "trainer_cpu", "difference", "pooled", "worst")


class Images(Question):
    name = "images"
    asks = "JPEG files to rows of 3x224x224: images a CPU second of each decoder, how near to PIL, and end to end"
    more = (
        "RandomResizedCrop and flips, the same boxes for all.  A decoder that is not installed is named and skipped.  "
        "Writes images.json and images.png."
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--methods", tuple(METHODS), "which ways of decoding to measure, in one process")
        add_choice(parser, "--loaders", tuple(LOADED), "which loaders to measure, with which way of decoding")
        parser.add_argument(
            "--parts", nargs="+", choices=(DECODE, LOAD), default=[DECODE, LOAD], help="of the question"
        )
        parser.add_argument("--seconds", type=seconds, default=3.0, help="length of one measurement")
        parser.add_argument("--data", type=Path, help="folder of JPEG files; the bench makes some where none is given")
        parser.add_argument("--batch-size", type=count, default=64, help="images in a batch, from end to end")
        add_workers(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._folder = ""
        self._files = ""  # what they are, in words

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "seconds": given.seconds,
            "workers": given.workers,
            "batch_size": given.batch_size,
            "files": self._files,
        }

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the files, where none are given."""
        with jpegs.given_or_made(self.given.data, MADE) as (self._folder, found):
            self._files = jpegs.described(found, self.given.data)
            yield

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        turns = []
        if DECODE in given.parts:
            turns += [self._decodes(method) for method in _turned(given.methods, at)]
        if LOAD in given.parts:
            turns += [self._loads(name) for name in _turned(given.loaders, at)]
        return turns

    def _decodes(self, method: str) -> Turn:
        given = self.given
        return Turn(
            {"part": DECODE, "subject": method},
            "bench.images.measure:decode",
            {"method": method, "folder": self._folder, "seconds": given.seconds},
            (1.5 if method == PIL else 4) * given.seconds + 2,  # PIL takes four times as long as the quickest
            given.timeout + 12 * given.seconds,
            gives_up=method not in (PIL, EXACT, FAST, ROWS),
            failure=METHODS[method].why_not(),
        )

    def _loads(self, name: str) -> Turn:
        given, (loader, method) = self.given, LOADED[name]
        arguments = {"loader": loader, "method": method, "folder": self._folder, "seconds": given.seconds}
        return Turn(
            {"part": LOAD, "subject": name},
            "bench.images.measure:load",
            {**arguments, "workers": given.workers, "batch_size": given.batch_size},
            2 * given.seconds,
            given.timeout + 4 * given.seconds,
            failure=METHODS[method].why_not(),
        )

    def also(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        found = {}
        for distribution in {name for method in self.given.methods for name in METHODS[method].distributions}:
            try:
                found[distribution] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        return {"versions": dict(sorted(found.items()))}

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {part: summary(part, measurements) for part in self.given.parts}

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether ours failed, or what all are compared with: what becomes of a peer is a result."""
        ours = (PIL, EXACT, FAST, ROWS, SLOWEST, "shmloader-exact", "shmloader-fast", "shmloader-rows")
        return any("failure" in each for each in result["measurements"] if each["subject"] in ours)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        show.print_tables(out, result)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        show.draw(result, path)


def _turned(names: list[str], at: int) -> list[str]:
    """Who goes first changes from round to round."""
    first = at % len(names)
    return names[first:] + names[:first]


def summary(part: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all rounds.

    Returns:
        for each subject its FIGURES, as far as it has them, each as median, min and max, and `ratio`, how many times as
        quick it is as PIL in the same process (from end to end: as torch's loader with PIL in the same round); or
        `failure`, why there are none.
    """
    rounds: dict[int, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    for each in measurements:
        if each["part"] == part and "failure" in each:
            reasons[each["subject"]] = each["failure"]
        elif each["part"] == part:
            rounds.setdefault(each["round"], {})[each["subject"]] = each

    def ratio(subject: str) -> Spread | None:
        if part == DECODE:
            return spread(by[subject]["ratio"] for by in rounds.values() if subject in by)
        speeds = [{name: each["images_per_second"] for name, each in by.items()} for by in rounds.values()]
        return spread(by[subject] / by[SLOWEST] for by in speeds if subject in by and SLOWEST in by)

    result: dict[str, Any] = {}
    known = {subject for by in rounds.values() for subject in by} | set(reasons)
    for subject in sorted(known, key=[*METHODS, *LOADED].index):
        if subject in reasons:
            result[subject] = {"failure": reasons[subject]}
            continue
        its = [by[subject] for by in rounds.values() if subject in by]
        result[subject] = {name: spread(each[name] for each in its if name in each) for name in FIGURES}
        result[subject]["ratio"] = ratio(subject)
    return result
