"""Training a net on JPEG files: images a second, and how long the loop waits, beside the net alone."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console

from bench.core import jpegs
from bench.core.loaders import missing
from bench.core.question import Question, Turn, add_choice, add_data, count, seconds
from bench.core.results import by_round, machine, print_end, table
from bench.core.spread import shown, spread
from bench.network.measure import ALONE, WAYS

FIGURES = {
    "images_per_second": ("images/s", 1.0),
    "of_alone": ("% of the net alone", 100.0),
    "waiting": ("waits, % of the time", 100.0),
    "trainer_cpu": ("trainer CPU ms a batch", 1e3),
    "first": ("first step s", 1.0),
}
MADE = 64  # files
WARM_UP = 10.0  # seconds, about, before a measurement counts


class Network(Question):
    name = "network"
    asks = "training a net on JPEG files: images a second, and the share of the time that the loop waits"
    more = (
        "A random crop of each picture, and a flip, in bfloat16: by torch's loader, by ours with images.fuse, and by "
        "ours with device= and pixels normalised there.  Without a GPU the net itself takes nearly all of the time.  "
        "Writes network.json."
    )
    rounds = 1

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--network", default="resnet50", help="one of torchvision.models, by its function's name")
        parser.add_argument("--workers", type=count, nargs="+", default=[4, 8, 15], help="worker processes")
        add_choice(parser, "--ways", WAYS, "which loaders to measure")
        parser.add_argument("--batch-size", type=count, default=256, help="images in a batch")
        parser.add_argument("--seconds", type=seconds, default=4.0, help="length of one measurement")
        add_data(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._root = self._files = ""

    def why_not(self) -> list[str]:
        why = missing(("torchvision",))
        return [f"network: nothing is measured, because torchvision is {why}"] if why else []

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "network": given.network,
            "seconds": given.seconds,
            "batch_size": given.batch_size,
            "files": self._files,
        }

    def machine(self) -> dict[str, str | int]:
        return {**machine(), "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none"}

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the files, where none are given, and a folder of one class around them."""
        with jpegs.given_or_made(self.given.data, MADE) as (folder, found), tempfile.TemporaryDirectory() as self._root:
            os.symlink(folder, os.path.join(self._root, "pictures"))
            self._files = jpegs.described(found, self.given.data)
            yield

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        ways = given.ways if at % 2 == 0 else given.ways[::-1]
        return [self._turn(ALONE, 0), *(self._turn(way, workers) for workers in given.workers for way in ways)]

    def _turn(self, way: str, workers: int) -> Turn:
        given = self.given
        arguments = {"network": given.network, "seconds": given.seconds, "batch_size": given.batch_size}
        return Turn(
            {"subject": _subject(way, workers)},
            "bench.network.measure:training",
            {"way": way, "root": self._root, "workers": workers, **arguments},
            WARM_UP + given.seconds,
            given.timeout + 4 * given.seconds,
        )

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(measurements)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings = result["settings"]
        title = f"{settings['network']}, batches of {settings['batch_size']}, on {result['machine']['gpu']}"
        made = table(title, ["loader"], [heading for heading, _ in FIGURES.values()])
        for subject, figures in result["summary"].items():
            made.add_row(subject, *(shown(figures[name], scale) for name, (_, scale) in FIGURES.items()))
        out.print(made)
        print_end(out, result, f"JPEG files: {settings['files']}")


def _subject(way: str, workers: int) -> str:
    return way if way == ALONE else f"{way}, workers: {workers}"


def summary(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each subject the spread of each figure over the rounds; of_alone: against the net alone in the same round."""
    known = by_round(measurements, "subject")
    subjects = dict.fromkeys(one["subject"] for one in measurements if "failure" not in one)
    rate = "images_per_second"
    return {
        subject: {
            "of_alone": spread(by[subject][rate] / by[ALONE][rate] for by in known if {subject, ALONE} <= by.keys()),
            **{
                name: spread(by[subject][name] for by in known if subject in by)
                for name in FIGURES
                if name != "of_alone"
            },
        }
        for subject in subjects
    }
