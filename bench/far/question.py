"""Far workers over loopback: batches a second, and the processor time that a batch costs this machine."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.cases import CASES
from bench.core.question import Question, Turn, add_choice, add_workers, seconds
from bench.core.results import failures, in_one_line, print_lines
from bench.core.spread import shown, spread
from bench.far.ways import WAYS

READ = ("uint8-images", "small-images", "scalar")
FAR_AND_LOCAL = ("local", *WAYS)


class Far(Question):
    name = "far"
    asks = "a batch that a far worker made, over loopback, beside one of a local worker"
    more = (
        "`far` are as many processes of this machine that send batches by TCP, as actors on other machines do.  With "
        "`passed on`, another process between them and this one reads and sends all bytes; with `10 ms later`, it "
        "holds each byte back in both directions.  Each far worker is asked for two batches at once if nothing else is "
        "named.  "
        "`both` are the trainer, and the local workers or the stand-ins.  Writes far.json."
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
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

    def settings(self) -> dict[str, Any]:
        return {"seconds": self.given.seconds, "workers": self.given.workers, "step": self.given.step}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        return [
            Turn(
                {"case": case, "way": way},
                "bench.far.measure:far",
                {"way": way, "case": case, "seconds": given.seconds, "workers": given.workers, "step": given.step},
                given.seconds + 12,
                given.timeout,
            )
            for case in given.cases
            for way in given.ways
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for case in self.given.cases:
            found[case] = {
                way: {
                    "batches_per_second": spread(one["batches_per_second"] for one in these),
                    "own": spread(one["own"] for one in these),
                    "trainer": spread(one["trainer"] for one in these),
                    "workers": spread(one["workers"] for one in these),
                    "far": spread(one["far"] for one in these),
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
        rounds = result["settings"]["rounds"]
        table = Table(title=f"far; rounds: {rounds}, medians \\[min..max]", title_justify="left")
        for heading in (
            "case",
            "way",
            "batch/s",
            "its thread's CPU, us",
            "trainer's CPU, us",
            "workers' CPU, us",
            "far workers' CPU, us",
            "both, of a memcpy",
        ):
            table.add_column(heading)
        for case, ways in result["summary"].items():
            for number, (way, one) in enumerate(ways.items()):
                table.add_row(
                    "" if number else case,
                    way,
                    shown(one["batches_per_second"], 1, all_of_it=True),
                    shown(one["own"], 1e6, all_of_it=True),
                    shown(one["trainer"], 1e6, all_of_it=True),
                    shown(one["workers"], 1e6, all_of_it=True),
                    shown(one["far"], 1e6, all_of_it=True),
                    shown(one["of_memcpy"], 1, all_of_it=True),
                )
        out.print(table)
        print_lines(out, failures(result["measurements"], "case", "way"), style="red")
        print_lines(out, [in_one_line(result["machine"])])
