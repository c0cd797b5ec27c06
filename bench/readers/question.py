"""One loader that several jobs read: what each of them gets, and what it costs them."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core import jpegs
from bench.core.cases import CASES
from bench.core.loaders import missing
from bench.core.question import Question, Turn, add_choice, add_data, add_workers, count, seconds
from bench.core.results import print_end, table
from bench.core.spread import shown, spread
from bench.readers.beside_tensorsocket import NEEDS, TENSORSOCKET

READ = ("jpeg-pil", "jpeg-simplejpeg", "uint8-images", "small-images", "scalar")
MADE_JPEGS = 64


class Readers(Question):
    name = "readers"
    _data = ""
    asks = "one loader that several jobs read, beside one loader alone and a loader for each"
    more = (
        "`alone` is one job with a loader of its own, `served` are jobs that read one loader, `each its own` are "
        "as many with a loader each, and TensorSocket (PyPI) gives as many the batches of one loader of torch's.  Each "
        "job reads a byte of every page; `cpu` is measured once more without that.  Writes readers.json."
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--cases", tuple(case for case in READ if case in CASES), "which to measure")
        parser.add_argument("--readers", type=count, default=4, help="jobs")
        parser.add_argument("--seconds", type=seconds, default=3, help="length of one measurement, after its warm-up")
        add_data(parser)
        add_workers(parser)

    @contextlib.contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        """Make the JPEG files, where some are wanted and none are given."""
        with tempfile.TemporaryDirectory() as made:
            self._data = str(self.given.data.absolute()) if self.given.data else made
            if self.given.data is None and any(CASES[case].decoder for case in self.given.cases):
                jpegs.make(Path(made), MADE_JPEGS)
            yield

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {"readers": given.readers, "seconds": given.seconds, "workers": given.workers}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        ways = [("alone", 1, True), ("served", given.readers, True), ("each its own", given.readers, True)]
        ways += [(TENSORSOCKET, given.readers, True)]
        ways += [("served", 1, False), ("served", given.readers, False)]
        return [
            Turn(
                {"case": case, "way": way, "jobs": str(number), "read": "touched" if touch else "not touched"},
                "bench.readers.measure:readers",
                {
                    "way": "each its own" if way == "alone" else way,
                    "case": case,
                    "readers": number,
                    "seconds": given.seconds,
                    "workers": given.workers,
                    "touch": touch,
                    "data": self._data,
                },
                given.seconds + 8,
                given.timeout,
                failure=missing(NEEDS) if way == TENSORSOCKET else "",
            )
            for case in given.cases
            for way, number, touch in ways
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for case in self.given.cases:
            mine = [one for one in measurements if one["case"] == case and "failure" not in one]
            found[case] = {
                f"{way}, {jobs}, {read}": {
                    "jobs": jobs,
                    "slowest": spread(one["batches_per_second"][0] for one in these),
                    "cpu": spread(statistics.median(one["cpu"]) for one in these),
                }
                for way, jobs, read in dict.fromkeys((one["way"], one["jobs"], one["read"]) for one in mine)
                if (these := [one for one in mine if (one["way"], one["jobs"], one["read"]) == (way, jobs, read)])
            }
        return found

    def failed(self, result: dict[str, Any]) -> bool:
        """Whether something failed; that TensorSocket is not installed is no failure."""
        return any("failure" in found for found in result["measurements"] if found["way"] != TENSORSOCKET)

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings = result["settings"]
        title = f"readers; rounds: {settings['rounds']}, medians \\[min..max]"
        made = table(title, ["case", "way", "jobs"], ["batch/s of the slowest", "CPU us a batch and job"])
        for case, ways in result["summary"].items():
            for number, (way, of) in enumerate(ways.items()):
                made.add_row(
                    "" if number else case,
                    way,
                    of["jobs"],
                    shown(of["slowest"], 1, all_of_it=True),
                    shown(of["cpu"], 1e6, all_of_it=True),
                )
        out.print(made)
        print_end(out, result)
