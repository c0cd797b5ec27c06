"""How much memory a dataset of paths, labels and boxes takes with several workers and ranks, as lists and frozen."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.question import METHODS, Question, Turn, add_workers, count
from bench.core.results import by_round, failures, in_one_line, print_lines
from bench.core.spread import shown, spread

SUBJECTS = ("nothing", "lists", "frozen")


class Memory(Question):
    name = "memory"
    asks = "how much memory a large dataset takes over an epoch, as lists and frozen"
    more = "Memory is that of all processes beyond what a dataset of nothing takes.  Writes memory.json."
    rounds = 3

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--megabytes", type=count, default=60, help="size of the dataset's pickle, about")
        parser.add_argument("--ranks", type=count, default=2, help="processes that train, each with all samples")
        parser.add_argument("--subjects", nargs="+", choices=SUBJECTS[1:], default=list(SUBJECTS[1:]), help="of these")
        add_workers(parser, 8)
        parser.add_argument(
            "--start-methods",
            nargs="+",
            choices=METHODS,
            default=["fork", "forkserver"],
            help="of workers",
        )

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {"megabytes": given.megabytes, "ranks": given.ranks, "workers": given.workers}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        subjects = [SUBJECTS[0], *(given.subjects if at % 2 == 0 else given.subjects[::-1])]
        return [
            Turn(
                {"start_method": method, "subject": subject},
                "bench.memory.measure:memory",
                {**self.settings(), "what": subject, "start_method": method},
                5 + given.megabytes / 5,
                given.timeout,
            )
            for method in given.start_methods
            for subject in subjects
        ]

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            method: {subject: summary(method, subject, measurements) for subject in self.given.subjects}
            for method in self.given.start_methods
        }

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings = result["settings"]
        table = Table(
            title=f"memory; ranks: {settings['ranks']}, workers of each: {settings['workers']}, pickle: about "
            f"{settings['megabytes']} MB, rounds: {settings['rounds']}, medians \\[min..max]",
            title_justify="left",
        )
        table.add_column("workers by")
        table.add_column("dataset")
        for heading in ("memory MB", "memory / pickle", "dataset\\[i] us", "freezing s", "epoch s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for method, subjects in result["summary"].items():
            for subject, found in subjects.items():
                table.add_row(
                    method,
                    subject,
                    shown(found["memory"], 1e-6, all_of_it=True),
                    shown(found["beyond"], all_of_it=True),
                    shown(found["access"], 1e6, all_of_it=True),
                    shown(found["freeze"], all_of_it=True),
                    shown(found["epoch"], all_of_it=True),
                )
        out.print(table)
        print_lines(out, failures(result["measurements"], "start_method", "subject"), style="red")
        print_lines(out, [in_one_line(result["machine"])])


def summary(method: str, subject: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each figure the median, least and most of the rounds.

    Returns:
        memory: bytes beyond those of a dataset of nothing in the same round; beyond: that as a share of the pickle;
        access, freeze, epoch: see measure.py.
    """
    rounds = by_round([found for found in measurements if found["start_method"] == method], "subject")
    whole = [by for by in rounds if subject in by and "nothing" in by]
    more = [by[subject]["memory"] - by["nothing"]["memory"] for by in whole]
    return {
        "memory": spread(more),
        "beyond": spread(bytes_ / by[subject]["pickled"] for bytes_, by in zip(more, whole, strict=True)),
        **{figure: spread(by[subject][figure] for by in whole) for figure in ("access", "freeze", "epoch")},
    }
