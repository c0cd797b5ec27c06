"""Whole recipes of augmentation: what a sample costs by torchvision, by timm, and fused."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core import jpegs
from bench.core.question import Question, Turn, add_choice, add_workers, count, seconds
from bench.core.results import print_lines
from bench.core.spread import shown, spread
from bench.recipes.measure import LOADED, V1, V2, WAYS
from bench.recipes.recipes import RECIPES

__all__ = ["Recipes", "summary"]

MADE = 64  # files
SAMPLES, LOAD = "samples", "load"


class Recipes(Question):
    name = "recipes"
    asks = "whole recipes of augmentation, JPEG files to samples: torchvision v1 and v2, timm, and images.fuse"
    more = "A recipe whose library is not installed is named and skipped.  Writes recipes.json."
    rounds = 3

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--recipes", tuple(RECIPES), "which recipes to measure")
        add_choice(parser, "--parts", (SAMPLES, LOAD), "CPU a sample in one process; images a second with workers")
        parser.add_argument("--seconds", type=seconds, default=2.0, help="length of one measurement")
        parser.add_argument("--data", type=Path, help="folder of JPEG files; the bench makes some where none is given")
        parser.add_argument("--batch-size", type=count, default=64, help="images in a batch, with workers")
        add_workers(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._folder = ""
        self._files = 0

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "seconds": given.seconds,
            "workers": given.workers,
            "batch_size": given.batch_size,
            "files": f"{self._files} {'given' if given.data else 'made by the bench'}",
        }

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the files, where none are given."""
        with tempfile.TemporaryDirectory() as made:
            folder = self.given.data.absolute() if self.given.data else Path(made)
            if self.given.data is None:
                jpegs.make(folder, MADE)
            self._folder, self._files = str(folder), len(jpegs.files(folder))
            if not self._files:
                sys.exit("--data: there are no JPEG files in that folder")
            yield

    def turns(self, at: int) -> list[Turn]:
        given, turns = self.given, []
        for recipe in given.recipes:
            why_not = RECIPES[recipe].why_not()
            both = {"recipe": recipe, "folder": self._folder, "seconds": given.seconds}
            ways = [way for way in WAYS if way != V2 or recipe != "timm"]
            ways = ways[at % len(ways) :] + ways[: at % len(ways)]  # who goes first changes from round to round
            if SAMPLES in given.parts:
                turns.append(
                    Turn(
                        {"part": SAMPLES, "recipe": recipe},
                        "bench.recipes.measure:samples",
                        {**both, "ways": ways},
                        12 * given.seconds,
                        given.timeout + 40 * given.seconds,
                        failure=why_not,
                    )
                )
            if LOAD in given.parts:
                turns += [
                    Turn(
                        {"part": LOAD, "recipe": recipe, "way": way},
                        "bench.recipes.measure:load",
                        {**both, "way": way, "workers": given.workers, "batch_size": given.batch_size},
                        2 * given.seconds,
                        given.timeout + 4 * given.seconds,
                        failure=why_not,
                    )
                    for way in ways
                    if way in LOADED
                ]
        return turns

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether a recipe failed whose library is there."""
        return any("failure" in of and not RECIPES[of["recipe"]].why_not() for of in result["measurements"])

    def show(self, out: Console, result: dict[str, Any]) -> None:
        for part, title in ((SAMPLES, "microseconds of CPU a sample"), (LOAD, "images a second, with workers")):
            if part not in self.given.parts:
                continue
            table = Table(title=title)
            for heading in ("recipe", *WAYS.values()):
                table.add_column(heading, justify="left" if heading == "recipe" else "right")
            for recipe, by in result["summary"][part].items():
                if "failure" not in by:
                    table.add_row(RECIPES[recipe].label, *(_cell(by.get(way)) for way in WAYS))
            out.print(table)
            missing = {name: by["failure"] for name, by in result["summary"][part].items() if "failure" in by}
            print_lines(out, [f"{RECIPES[name].label}: not measured: {why}" for name, why in missing.items()])


def _cell(of: Any) -> str:
    return "-" if of is None else f"{shown(of['figure'])} ({shown(of['ratio'])}x)"


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all rounds.

    Returns:
        by part and recipe: of each way its `figure` (microseconds of CPU a sample; images a second) and its `ratio`,
        how many times as quick it is as v1 (or timm) in the same round; or `failure`, why there are none.
    """
    rounds: dict[tuple[str, str, int], dict[str, float]] = {}
    result: dict[str, Any] = {SAMPLES: {}, LOAD: {}}
    for of in measurements:
        if "failure" in of:
            result[of["part"]][of["recipe"]] = {"failure": of["failure"]}
            continue
        by = rounds.setdefault((of["part"], of["recipe"], of["round"]), {})
        by.update({way: of[way] for way in WAYS if way in of} if of["part"] == SAMPLES else {})
        if of["part"] == LOAD:
            by[of["way"]] = of["images_per_second"]
    for part, recipe in dict.fromkeys(key[:2] for key in rounds):
        if "failure" in result[part].get(recipe, {}):
            continue
        its = [by for (its_part, its_recipe, _), by in rounds.items() if (its_part, its_recipe) == (part, recipe)]
        result[part][recipe] = {
            way: {
                "figure": spread(by[way] for by in its if way in by),
                "ratio": spread(
                    by[V1] / by[way] if part == SAMPLES else by[way] / by[V1] for by in its if way in by and V1 in by
                ),
            }
            for way in WAYS
            if any(way in by for by in its)
        }
    return result
