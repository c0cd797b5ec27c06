"""Far workers over loopback: batches a second, and the processor time that a batch costs this machine.  And beside Ray
Data, on a local cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.cases import CASES
from bench.core.question import Question, Turn, add_choice, add_data, add_workers, count, seconds
from bench.core.results import print_end, print_lines, table
from bench.core.spread import shown, spread
from bench.far import beside
from bench.far.beside_ray import LOADERS, WARM_UP
from bench.far.ways import WAYS

READ = ("uint8-images", "small-images", "scalar")
FAR_AND_LOCAL = ("local", *WAYS)
LOOPBACK, RAY = "loopback", "ray"
MADE = 96  # files
COLUMNS = {  # of the table over loopback
    "batches_per_second": "batch/s",
    "own": "its thread's CPU, us",
    "trainer": "trainer's CPU, us",
    "workers": "workers' CPU, us",
    "far": "far workers' CPU, us",
    "of_memcpy": "both, of a memcpy",
}
STARTS = 25.0  # seconds, about, until a cluster is up and has made a batch
NO_RAY = "Ray Data: not measured, because it is not installed.  `make test-ray` makes an environment for it."


class Far(Question):
    name = "far"
    asks = "a batch that a far worker made, over loopback, beside one of a local worker"
    more = (
        "`far` are as many processes of this machine that send batches by TCP, as actors on other machines do.  With "
        "`passed on`, another process between them and this one reads and sends all bytes; with `10 ms later`, it "
        "holds each byte back in both directions.  Each far worker is asked for two batches at once if nothing else is "
        "named.  "
        "`both` are the trainer, and the local workers or the stand-ins.  "
        "The part `ray` makes batches from JPEG files, on a local cluster of a node for each worker, with the same "
        "code of PIL: by far workers, and by Ray Data's iter_torch_batches.  The loop first takes batches as quickly "
        "as they come, and then sleeps after each.  `batches` are the bytes in all object stores and in our ring, at "
        "most; `all memory` is by how much the processes of the cluster have grown since it was up.  Writes far.json."
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--parts", (LOOPBACK, RAY), "of the question")
        add_choice(parser, "--cases", tuple(case for case in READ if case in CASES), "which to measure")
        parser.add_argument("--seconds", type=seconds, default=3, help="length of one measurement, after its warm-up")
        add_choice(parser, "--ways", FAR_AND_LOCAL, "which to measure")
        parser.add_argument(
            "--step",
            type=float,
            default=0,
            help="seconds that the loop sleeps after each batch.  So all ways have one rate, and the "
            "figure of the loop's own thread is that of a batch that is ready",
        )
        add_workers(parser)
        add_choice(parser, "--loaders", LOADERS, "which to measure beside Ray Data")
        parser.add_argument(
            "--ray-seconds", type=seconds, default=15, help="beside Ray Data: length of each of the two measurements"
        )
        parser.add_argument(
            "--ray-step",
            type=seconds,
            default=0.4,
            help="beside Ray Data: seconds that the slow loop sleeps after each batch",
        )
        parser.add_argument("--batch-size", type=count, default=64, help="beside Ray Data: images in a batch")
        parser.add_argument("--store", type=count, default=2, help="beside Ray Data: GiB of each node's object store")
        add_data(parser)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self._python = beside.python() if RAY in given.parts else ""
        self._folder = self._files = ""

    def why_not(self) -> list[str]:
        return [NO_RAY] if self.given.parts == [RAY] and not self._python else []

    def settings(self) -> dict[str, Any]:
        given = self.given
        loopback = {"seconds": given.seconds, "workers": given.workers, "step": given.step}
        if not self._python:
            return loopback
        of_ray = {"seconds": given.ray_seconds, "step": given.ray_step, "batch_size": given.batch_size}
        return {**loopback, "ray": {**of_ray, "store_GiB": given.store, "files": self._files}}

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the files, where none are given."""
        if not self._python:
            yield
            return
        with jpegs.given_or_made(self.given.data, MADE) as (self._folder, found):
            self._files = jpegs.described(found, self.given.data)
            yield

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        turns = self._over_loopback() if LOOPBACK in given.parts else []
        if self._python:
            first = at % len(given.loaders)
            turns += [self._beside_ray(loader) for loader in given.loaders[first:] + given.loaders[:first]]
        return turns

    def _beside_ray(self, loader: str) -> Turn:
        given = self.given
        arguments = {"loader": loader, "folder": self._folder, "seconds": given.ray_seconds, "step": given.ray_step}
        takes = STARTS + WARM_UP + 2 * given.ray_seconds
        return Turn(
            {"part": RAY, "loader": loader},
            "bench.far.beside_ray:beside_ray",
            {**arguments, "workers": given.workers, "batch_size": given.batch_size, "store": given.store << 30},
            takes,
            given.timeout + 2 * takes,
            python=self._python,
        )

    def _over_loopback(self) -> list[Turn]:
        given = self.given
        return [
            Turn(
                {"part": LOOPBACK, "case": case, "way": way},
                "bench.far.measure:far",
                {"way": way, "case": case, "seconds": given.seconds, "workers": given.workers, "step": given.step},
                given.seconds + 12,
                given.timeout,
            )
            for case in given.cases
            for way in given.ways
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        parts = {part: [one for one in measurements if one["part"] == part] for part in self.given.parts}
        summaries = {LOOPBACK: self._of_loopback, RAY: beside.summary}
        return {part: summaries[part](those) for part, those in parts.items()}

    def _of_loopback(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for case in self.given.cases:
            found[case] = {
                way: {
                    **{name: spread(one[name] for one in these) for name in COLUMNS if name != "of_memcpy"},
                    "of_memcpy": spread((one["trainer"] + one["workers"]) / max(one["memcpy"], 1e-9) for one in these),
                }
                for way in self.given.ways
                if (
                    these := [
                        one for one in measurements if (one["case"], one["way"]) == (case, way) and "failure" not in one
                    ]
                )
            }
        return found

    def show(self, out: Console, result: dict[str, Any]) -> None:
        summary, settings = result["summary"], result["settings"]
        if LOOPBACK in summary:
            _print_loopback(out, summary[LOOPBACK], settings["rounds"])
        if summary.get(RAY):
            beside.print_table(out, summary[RAY], settings)
        elif RAY in summary and not self._python:
            print_lines(out, [NO_RAY])
        print_end(out, result)


def _print_loopback(out: Console, found: dict[str, Any], rounds: int) -> None:
    made = table(f"far; rounds: {rounds}, medians \\[min..max]", ["case", "way"], COLUMNS.values())
    for case, ways in found.items():
        for number, (way, one) in enumerate(ways.items()):
            cells = (shown(one[name], 1e6 if "us" in COLUMNS[name] else 1, all_of_it=True) for name in COLUMNS)
            made.add_row("" if number else case, way, *cells)
    out.print(made)
