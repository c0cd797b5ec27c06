"""`--against FOLDER`: this checkout's shmloader beside that of another one, in turns: what a change costs or gains.
A case is SLOWER if the median ratio of batches a second is below LEAST, and every round is below 1.

Both sides are measured by this bench; only the imported shmloader differs.  Both checkouts must be built
for this Python.  A ratio is of two measurements that follow each other, and their order changes from round to round, so
that neither the order nor other work of the machine decides.

bench/transport/question.py compares shmloader with torch's loader.  throughput.py measures both.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core import child
from bench.core.cases import CASES
from bench.core.loaders import OURS, PREFETCH
from bench.core.question import Question, Turn
from bench.core.results import ROOT, by_round, commit, failures, in_one_line, machine, print_lines
from bench.core.spread import Spread, shown, spread
from bench.core.throughput import IN_ALL

HERE, THERE = "here", "there"
LEAST = 0.97  # a case whose median is below that, and whose rounds all are below 1, is slower
# Figures, and their names in a table: ratios of this checkout's to the other one's.
RATIOS = {
    "batches_per_second": "batches/s",
    "trainer_cpu": "trainer CPU a batch",
    "workers_cpu": "workers' CPU a batch",
    "next_p50": "next() p50",
    "next_p99": "next() p99",
}


def add_against(parser: argparse.ArgumentParser) -> None:
    """The option that makes Against of a question."""
    parser.add_argument(
        "--against",
        type=_checkout,
        metavar="FOLDER",
        help="another checkout of shmloader, built: measure this one's and that one's instead, in turns",
    )


def _checkout(text: str) -> Path:
    if not Path(text, "shmloader").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} has no folder `shmloader`: it is no checkout")
    return Path(text).resolve()


class Against(Question):
    """A question about batches a second, put to two checkouts."""

    add_options = staticmethod(add_against)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        self.name = f"{given.bench}-against"
        self.sides = {HERE: ROOT, THERE: given.against}
        self.cases = [case for case in given.cases if case in CASES and not CASES[case].decoder]

    def why_not(self) -> list[str]:
        if not self.cases:
            sys.exit("--against: none of these cases is a rate of batches that are there already")
        insist(self.sides.values(), self.given.timeout)
        return []

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "seconds": given.seconds,
            "workers": given.workers,
            "prefetch_factor": PREFETCH,
            "start_method": given.start_method,
        }

    def machine(self) -> dict[str, str | int]:
        return {**machine(), "against": commit(self.given.against)}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        order = (HERE, THERE) if at % 2 == 0 else (THERE, HERE)
        common = {"loader": OURS, "seconds": given.seconds, "workers": given.workers}
        return [
            Turn(
                {"case": case, "subject": side},
                "bench.core.throughput:throughput",
                {**common, "case": case, "start_method": given.start_method},
                IN_ALL * given.seconds,
                given.timeout + 4 * given.seconds,
                checkout=self.sides[side],
            )
            for case in self.cases
            for side in order
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {case: summary(case, measurements) for case in self.cases}

    def failed(self, result: dict[str, Any]) -> bool:
        return super().failed(result) or any(each["slower"] for each in result["summary"].values())

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings = result["settings"]
        table = Table(
            title=f"{result['bench']}; workers: {settings['workers']} by {settings['start_method']}, rounds: "
            f"{settings['rounds']}; this checkout to the other, medians of the rounds' ratios \\[min..max]",
            title_justify="left",
        )
        table.add_column("case", no_wrap=True)
        table.add_column("batches/s\nhere | there", justify="right", no_wrap=True)
        for heading in RATIOS.values():
            table.add_column(f"{heading}\nhere / there", justify="right", no_wrap=True)
        table.add_column("slower")
        for case, found in result["summary"].items():
            table.add_row(
                CASES[case].label,
                " | ".join(shown(found[side]["batches_per_second"]) for side in (HERE, THERE)),
                *(shown(found["ratio"][figure], all_of_it=True) for figure in RATIOS),
                "SLOWER" if found["slower"] else "no" if found["ratio"]["batches_per_second"] else "failed",
            )
        out.print(table)
        print_lines(out, failures(result["measurements"]), style="red")
        found = result["machine"]
        commits = f"here: {found['commit'] or 'no commit'}; there: {found['against'] or 'no commit'}"
        print_lines(out, [f"SLOWER: the median is below {LEAST}, and every round below 1", commits, in_one_line(found)])


def insist(checkouts: Iterable[Path], timeout: float) -> None:
    """Exit unless a measurement imports the shmloader of each of these checkouts, all of it."""
    for checkout in checkouts:
        try:
            files = child.run("bench.core.against:imported", {}, timeout, checkout=checkout)["files"]
        except child.ChildError as failure:
            sys.exit(f"--against: the shmloader of {checkout} cannot be imported: {failure}; is it built?")
        if strangers := [file for file in files if not Path(file).is_relative_to(checkout / "shmloader")]:
            sys.exit(f"--against: the shmloader of {checkout} is not built: it would import {strangers[0]}")


def imported() -> dict[str, list[str]]:
    """The files of the shmloader that a measurement imports.

    All of them, because an extension that is missing in one checkout may be found in the installed one.
    """
    import shmloader

    _ = shmloader.DataLoader  # a module that looks names up lazily imports them now
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "shmloader"}
    return {"files": sorted(str(Path(module.__file__).resolve()) for module in modules.values() if module.__file__)}


def imported_by_worker(start_method: str) -> dict[str, list[str]]:
    """The same for the imports of a worker."""
    with multiprocessing.get_context(start_method).Pool(1) as pool:
        return pool.apply(imported)


def summary(case: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        here, there: of each side its RATIOS' figures;
        ratio: of each of RATIOS here to there, of one round;
        slower: whether the median of the batches a second is below LEAST and no round is above 1.
    """
    rounds = by_round([found for found in measurements if found["case"] == case], "subject")
    pairs = [by for by in rounds if len(by) == 2]
    result: dict[str, Any] = {
        side: {figure: spread(by[side][figure] for by in pairs) for figure in RATIOS} for side in (HERE, THERE)
    }
    result["ratio"] = {
        figure: spread(by[HERE][figure] / by[THERE][figure] for by in pairs if by[THERE][figure]) for figure in RATIOS
    }
    speed: Spread | None = result["ratio"]["batches_per_second"]
    result["slower"] = speed is not None and speed["median"] < LEAST and speed["max"] < 1
    return result
