"""Samples that do not all take as long: who waits for whom, and whether the batches are still the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.core.picture import INK, OURS, TORCH, finish, unframe
from bench.core.question import Question, Turn, add_choice, add_workers, count, seconds
from bench.core.results import by_round, print_end, table
from bench.core.spread import shown, spread
from bench.skew.measure import LOADERS, SKEWS

IDLE = (
    "idle: the part of the workers' time spent outside the dataset's __getitem__, while there was always work: from "
    "when each may have delivered two batches to the last batch measured, which is not the last of the epoch"
)
FIGURES = ("first", "samples_per_second", "idle", "late")
COLOURS = dict(zip(LOADERS, (TORCH, "#5fa8b0", OURS, "#003d4c"), strict=True))


class Skew(Question):
    name = "skew"
    asks = "samples a second, the first batch and idle workers, where some samples take much longer, or all take long"
    more = (
        "Samples sleep, so that more workers than cores run at once; all batches are compared with those of one "
        "worker.  Chunks are quarters of a batch.  Writes skew.json and skew.png.  Cases: "
        + "; ".join(f"{case.name}: {case.label}" for case in SKEWS.values())
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--cases", tuple(SKEWS), "which to measure")
        add_choice(parser, "--loaders", tuple(LOADERS), "by whom")
        parser.add_argument("--milliseconds", type=seconds, default=2.0, help="that most samples take")
        parser.add_argument("--batches", type=count, default=400, help="of a measurement, after two for each worker")
        parser.add_argument("--batch-size", type=count, default=4, help="samples in a batch")
        add_workers(parser, 8)

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(given)
        # with those before what is timed
        self._of_all = {"batches": given.batches + 2 * given.workers, "batch_size": given.batch_size}
        self._one_worker = ""  # the digest of the batches that one worker makes

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            **self._of_all,
            "chunk_size": max(1, given.batch_size // 4),
            "workers": given.workers,
            "seconds": given.milliseconds / 1e3,
        }

    @contextmanager
    def prepared(self, out: Console) -> Iterator[None]:
        single = Turn({}, "bench.skew.measure:one_worker", self._of_all, 0, self.given.timeout).measure()
        if "failure" in single:
            sys.exit(f"one worker: {single['failure']}; there is nothing to compare with")
        self._one_worker = single["digest"]
        yield

    def turns(self, at: int) -> list[Turn]:
        given, settings = self.given, self.settings()
        first = at % len(given.loaders)
        return [
            Turn(
                {"case": case, "subject": loader},
                "bench.skew.measure:throughput",
                {**settings, "case": case, "loader": loader},
                1.5 * self._limit(case),
                given.timeout,
            )
            for case in given.cases
            for loader in given.loaders[first:] + given.loaders[:first]
        ]

    def _limit(self, case: str) -> float:
        """Seconds that all samples take the workers if none is ever idle."""
        samples = self._of_all["batches"] * self._of_all["batch_size"]
        return float(sum(SKEWS[case].sleeps(samples, self.given.milliseconds / 1e3)) / self.given.workers)

    def checked(self, found: dict[str, Any]) -> dict[str, Any]:
        if found.get("digest", self._one_worker) != self._one_worker:
            return {"failure": "not the batches that one worker makes"}
        return found

    def also(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {"idle": IDLE}

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {case: summary(case, self.given.loaders, measurements) for case in self.given.cases}

    def show(self, out: Console, result: dict[str, Any]) -> None:
        settings = result["settings"]
        made = table(
            f"skew; workers: {settings['workers']}, batches of {settings['batch_size']}, chunks of "
            f"{settings['chunk_size']}, most samples {settings['seconds'] * 1e3:g} ms, rounds: {settings['rounds']}, "
            "medians \\[min..max]",
            ["samples", "loader"],
            ["samples/s", "/ torch", "% of limit", "first batch ms", "workers idle %", "samples late us"],
        )
        for case, each in result["summary"].items():
            for k, (loader, its) in enumerate(each["loaders"].items()):
                made.add_row(
                    "" if k else SKEWS[case].label,
                    LOADERS[loader],
                    shown(its["samples_per_second"], all_of_it=True),
                    shown(its["ratio"], all_of_it=True),
                    shown(its["samples_per_second"], 100 / each["limit"]) if each["limit"] else "-",
                    shown(its["first"], 1e3),
                    shown(its["idle"], 100, all_of_it=True),
                    shown(its["late"], 1e6),
                    end_section=k == len(each["loaders"]) - 1,
                )
        out.print(made)
        print_end(
            out,
            result,
            "limit: samples a second if no worker were ever idle and no sample late (sleeps end late, on busy cores "
            "very late)",
            IDLE,
            "each loader's batches were compared, all of them, with those that one worker makes",
        )

    def draw(self, result: dict[str, Any], path: Path) -> None:
        """For each loader a bar up to the limit, of which its workers were idle for a part; a panel for each case."""
        from matplotlib.figure import Figure

        cases = result["summary"]
        figure = Figure(figsize=(9, 0.8 + 1.9 * len(cases)), dpi=150, layout="constrained")
        for axes, (case, found) in zip(figure.subplots(len(cases), squeeze=False)[:, 0], cases.items(), strict=True):
            loaders = found["loaders"]
            for row, (loader, its) in enumerate(loaders.items()):
                speed = its["samples_per_second"]
                if not speed:
                    axes.text(0, -row, " failed", color=INK, va="center", fontsize=8)
                    continue
                axes.barh(-row, speed["median"], height=0.6, color=COLOURS[loader], zorder=2)
                axes.plot([speed["min"], speed["max"]], [-row, -row], color=INK, linewidth=1.2, zorder=3)
                text = f" {shown(speed)}; workers idle {shown(its['idle'], 100)} %"
                axes.text(0, -row, text, color="white", va="center", fontsize=9, zorder=4)
            if found["limit"]:
                axes.axvline(found["limit"], color=INK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
            axes.set_title(SKEWS[case].label, loc="left", fontsize=10, color=INK)
            axes.set_yticks([-row for row in range(len(loaders))], [LOADERS[name] for name in loaders], fontsize=9)
            axes.tick_params(axis="y", length=0)
            unframe(axes)
        axes.set_xlabel("samples a second; dashed: no worker ever idle, no sample late", color=INK)
        settings = result["settings"]
        title = f"Uneven samples: {settings['workers']} workers, batches of {settings['batch_size']}"
        finish(figure, f"{title}, rounds: {settings['rounds']}", result["machine"], path)


def summary(case: str, loaders: list[str], measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        limit: samples a second if the workers had nothing else to do;
        loaders: of each its FIGURES, and ratio: its samples_per_second to torch's of the same round.
    """
    rounds = by_round([found for found in measurements if found["case"] == case], "subject")
    figures = {}
    for loader in loaders:
        its = [by for by in rounds if loader in by]
        figures[loader] = {
            **{figure: spread(by[loader][figure] for by in its) for figure in FIGURES},
            "ratio": spread(
                by[loader]["samples_per_second"] / by["torch"]["samples_per_second"] for by in its if "torch" in by
            ),
        }
    limit = next((found["limit"] for by in rounds for found in by.values()), None)
    return {"limit": limit, "loaders": figures}
