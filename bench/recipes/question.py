"""Whole recipes of augmentation: what a sample costs by torchvision, timm, albumentations and DALI, and fused."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.question import Question, Turn, add_choice, add_data, add_workers, count, seconds
from bench.core.spread import spread
from bench.recipes.recipes import RECIPES
from bench.recipes.show import LOAD, LOAD_CPU, PARTS, SAMPLES, draw, print_tables
from bench.recipes.ways import DALI, V1, WAYS

__all__ = ["Recipes", "summary"]

MADE = 64  # files


class Recipes(Question):
    name = "recipes"
    asks = "whole recipes of augmentation, JPEG files to samples: torchvision, timm, albumentations, DALI, images.fuse"
    more = (
        "A recipe or a way whose library is not installed is named and skipped.  Writes recipes.json and recipes.png."
    )
    rounds = 3

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--recipes", tuple(RECIPES), "which recipes to measure")
        add_choice(parser, "--ways", tuple(WAYS), "which ways from files to samples")
        add_choice(
            parser,
            "--parts",
            (SAMPLES, LOAD, PARTS),
            "CPU a sample in one process; images a second with workers; what each part of a fused sample costs",
        )
        parser.add_argument("--seconds", type=seconds, default=2.0, help="length of one measurement")
        add_data(parser)
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
        with jpegs.given_or_made(self.given.data, MADE) as (self._folder, found):
            self._files = len(found)
            yield

    def turns(self, at: int) -> list[Turn]:
        return [turn for recipe in self.given.recipes for turn in self._turns(recipe, at)]

    def _turns(self, recipe: str, at: int) -> Iterator[Turn]:
        given, failure = self.given, RECIPES[recipe].why_not()
        where = {"recipe": recipe, "folder": self._folder}
        both = {**where, "seconds": given.seconds}
        ways = [name for name, way in WAYS.items() if name in given.ways and way.has(recipe)]
        ways = ways[at % len(ways) :] + ways[: at % len(ways)]  # who goes first changes from round to round
        together = [way for way in ways if way != DALI]
        for by in [by for by in (together, [way for way in ways if way == DALI]) if by and SAMPLES in given.parts]:
            yield Turn(
                {"part": SAMPLES, "recipe": recipe, "ways": " ".join(sorted(by))},
                "bench.recipes.measure:samples",
                {**both, "by": by},
                12 * given.seconds,
                given.timeout + 60 * given.seconds,
                failure=failure,
            )
        if PARTS in given.parts:
            yield Turn(
                {"part": PARTS, "recipe": recipe},
                "bench.recipes.measure:parts",
                where,
                4,
                given.timeout,
                failure=failure,
            )
        if LOAD in given.parts:
            for way in ways:
                if WAYS[way].has_loader:
                    yield Turn(
                        {"part": LOAD, "recipe": recipe, "way": way},
                        "bench.recipes.measure:load",
                        {**both, "way": way, "workers": given.workers, "batch_size": given.batch_size},
                        2 * given.seconds,
                        given.timeout + 4 * given.seconds,
                        failure=failure,
                    )

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether a recipe failed whose library is there."""
        return any("failure" in one and not RECIPES[one["recipe"]].why_not() for one in result["measurements"])

    def show(self, out: Console, result: dict[str, Any]) -> None:
        print_tables(out, result)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        draw(result, path)


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of all rounds.

    Returns:
        by part and recipe: of each way its `figure` (microseconds of CPU; images a second) and its `ratio`,
        how many times as quick it is as v1 (or timm) in the same round; of PARTS, of each part of a fused sample the
        spread of its microseconds; and `failure`, why there are none, or none of some way.
    """
    result: dict[str, Any] = {SAMPLES: {}, LOAD: {}, LOAD_CPU: {}, PARTS: {}}
    rounds: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    failures: dict[tuple[str, str], str] = {}
    for one in measurements:
        part, recipe = one["part"], one["recipe"]
        if "failure" in one:
            failures.setdefault((part, recipe), one["failure"])
            continue
        its = rounds.setdefault((part, recipe), {}).setdefault(one["round"], {})
        if part == LOAD:
            its[one["way"]] = one["images_per_second"]
            rounds.setdefault((LOAD_CPU, recipe), {}).setdefault(one["round"], {})[one["way"]] = one["cpu"]
        else:
            its |= {name: value for name, value in one.items() if name not in ("part", "recipe", "ways", "round")}
    for (part, recipe), by_round in rounds.items():
        result[part][recipe] = _of_recipe(part, list(by_round.values()))
    for (part, recipe), why in failures.items():
        result[part].setdefault(recipe, {})["failure"] = why
    return result


def _of_recipe(part: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    names = dict.fromkeys(name for one in rounds for name in one)
    if part == PARTS:
        return {name: spread(one[name] for one in rounds if name in one) for name in names}

    def ratio(one: dict[str, float], way: str) -> float:
        return one[way] / one[V1] if part == LOAD else one[V1] / one[way]

    return {
        way: {
            "figure": spread(one[way] for one in rounds if way in one),
            "ratio": spread(ratio(one, way) for one in rounds if way in one and V1 in one),
        }
        for way in WAYS
        if way in names
    }
