"""Handing batches over: torch's loader, ours and the ceiling, in turns, several rounds.

A ratio is always ours to torch's in one round.  The two measurements follow each other, so other work of the machine
weighs on both.  The order changes from round to round.

bench/core/throughput.py counts the batches and divides by the time.  A new workload is a Case in bench/core/cases.py,
and its name goes into TRANSPORTED here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.against import add_against
from bench.core.cases import CASES
from bench.core.ceiling import CEILINGS, MEANING
from bench.core.loaders import PREFETCH, SPARE
from bench.core.picture import INK, OURS, PALE, TORCH, finish, unframe
from bench.core.question import Question, Turn, add_choice, add_start_method, add_workers, seconds
from bench.core.results import by_round, print_end, table
from bench.core.spread import Spread, shown, spread
from bench.core.throughput import IN_ALL

LOADERS = ("torch", "shmloader")
TRANSPORTED = (
    "uint8-images",
    "float32-images",
    "subclass",
    "small-images",
    "small-images-int",
    "image",
    "image-int",
    "image-float",
    "array-int",
    "array-int64",
    "image-path",
    "image-mixed",
    "image-nested",
    "image-stacked",
    "scalar",
    "dict",
)  # of one shape; all but image-stacked by default_collate
SCOPE = "the dataset: two prebuilt samples again and again, hot in the cache; a dataset that has work to do gains less"
FIGURES = (
    "batches_per_second",
    "bytes_per_second",
    "trainer_cpu",
    "workers_cpu",
    "trainer_faults",
    "tree_faults",
)
COLUMNS = (
    "torch\nbatches/s",
    "shmloader\nbatches/s",
    "shmloader / torch\nbatches/s",
    "GB/s",
    "% of memcpy\nceiling",
    "% of streaming\nceiling",
    "trainer CPU\nus/batch",
    "shmloader / torch\ntrainer CPU",
    "trainer faults\n/batch",
)
MARKS = {"memcpy": (0, (4, 2)), "streaming": (0, (1, 1))}


class Transport(Question):
    name = "transport"
    asks = "torch's loader and shmloader's alone: batches a second, processor time and page faults"
    more = (
        "The dataset returns prebuilt samples again and again, so collating and handing over is all that is measured.  "
        "Writes transport.json and transport.png.  Cases: "
        + "; ".join(f"{case}: {CASES[case].label}" for case in TRANSPORTED)
    )

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--cases", TRANSPORTED, "which to measure")
        parser.add_argument("--seconds", type=seconds, default=1.5, help="length of one measurement, after its warm-up")
        add_workers(parser)
        add_start_method(parser)
        add_against(parser)

    def settings(self) -> dict[str, Any]:
        given = self.given
        return {
            "seconds": given.seconds,
            "workers": given.workers,
            "prefetch_factor": PREFETCH,
            "spare_slots": SPARE,
            "start_method": given.start_method,
            "batch_bytes": {case: CASES[case].batch_bytes for case in given.cases},
        }

    def turns(self, at: int) -> list[Turn]:
        return [self._turn(case, subject) for case in self.given.cases for subject in _order(case, at)]

    def _turn(self, case: str, subject: str) -> Turn:
        given = self.given
        arguments: dict[str, Any] = {"case": case, "seconds": given.seconds, "workers": given.workers}
        if subject in CEILINGS:
            function, arguments["kind"] = "bench.core.ceiling:ceiling", subject
        else:
            function = "bench.core.throughput:throughput"
            arguments |= {"loader": subject, "start_method": given.start_method}
        return Turn(
            {"case": case, "subject": subject},
            function,
            arguments,
            IN_ALL * given.seconds,
            given.timeout + 2 * given.seconds,
        )

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {case: summary(case, measurements) for case in self.given.cases}

    def show(self, out: Console, result: dict[str, Any]) -> None:
        made = table(
            f"transport; workers: {result['settings']['workers']} by {result['settings']['start_method']}, "
            f"rounds: {result['settings']['rounds']}, medians \\[min..max]; two figures: torch | shmloader",
            ["case"],
            COLUMNS,
            padding=(0, 1, 0, 0),
        )
        for case, each in result["summary"].items():
            both = {
                key: " | ".join(shown(each[loader].get(key), scale) for loader in LOADERS)
                for key, scale in (
                    ("bytes_per_second", 1e-9),
                    ("of_memcpy", 100),
                    ("of_streaming", 100),
                    ("trainer_cpu", 1e6),
                    ("trainer_faults", 1),
                )
            }
            is_large = CASES[case].is_large
            failed = any(m["case"] == case and "failure" in m for m in result["measurements"])
            made.add_row(
                CASES[case].label + (" FAILED" if failed else ""),
                shown(each["torch"]["batches_per_second"]),
                shown(each["shmloader"]["batches_per_second"]),
                shown(each["ratio"], all_of_it=True),
                both["bytes_per_second"] if CASES[case].batch_bytes >= 1 << 16 else "",
                both["of_memcpy"] if is_large else "",
                both["of_streaming"] if is_large else "",
                both["trainer_cpu"],
                shown(each["trainer_cpu_ratio"], all_of_it=True),
                both["trainer_faults"],
            )
        out.print(made)
        beside = {case: figures for case, figures in result["summary"].items() if figures["to_image_alone"]}
        if beside:
            out.print(_table_of_columns(beside))
        large = any(CASES[case].is_large for case in result["summary"])
        ceilings = [f"ceiling, {kind}: {meaning}" for kind, meaning in MEANING.items()] if large else []
        print_end(out, result, *ceilings, SCOPE)

    def draw(self, result: dict[str, Any], path: Path) -> None:
        """Both loaders on one logarithmic scale, and the ceilings."""
        from matplotlib.figure import Figure

        cases = result["summary"]
        figure = Figure(figsize=(9, 1.6 + 0.72 * len(cases)), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        for row, (case, figures) in enumerate(cases.items()):
            _draw_case(axes, -row, figures, result["settings"]["batch_bytes"][case])
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.6, high * 1.6)  # room for the figures beside the dots
        axes.set_ylim(-len(cases) + 0.4, 0.6)
        axes.set_yticks(
            [-row for row in range(len(cases))], [CASES[case].label for case in cases], fontsize=10, color=INK
        )
        axes.set_xlabel("batches a second, logarithmic", color=INK)
        axes.tick_params(axis="y", length=0)
        unframe(axes)
        _draw_legend(axes, any(CASES[case].is_large for case in cases))
        settings = result["settings"]
        finish(
            figure,
            f"Handing batches over: {settings['workers']} workers, median of {settings['rounds']} rounds",
            result["machine"],
            path,
        )


def _order(case: str, at: int) -> tuple[str, ...]:
    loaders = LOADERS if at % 2 == 0 else LOADERS[::-1]
    return (*loaders, *CEILINGS) if CASES[case].is_large else loaders


def summary(case: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one case over all rounds, each as median, min and max (None where no round has it).

    Returns:
        for each loader its FIGURES, and of_memcpy and of_streaming, the part of that ceiling that it reaches;
        for each ceiling its bytes_per_second;
        ratio and trainer_cpu_ratio: shmloader's batches a second, and processor time a batch, to torch's;
        to_image_alone: shmloader's workers' processor time a batch, to that of the same image with nothing beside it
        (None where that was not measured).
    """
    rounds = by_round([found for found in measurements if found["case"] == case], "subject")

    def over(figure: str, subject: str, to: str | None = None) -> Spread | None:
        values = [
            by[subject][figure] / (by[to][figure] if to else 1)
            for by in rounds
            if subject in by and (to is None or by.get(to, {}).get(figure))
        ]
        return spread(values)

    result: dict[str, Any] = {}
    for loader in LOADERS:
        result[loader] = {figure: over(figure, loader) for figure in FIGURES}
    if CASES[case].is_large:
        for kind in CEILINGS:
            result[kind] = {"bytes_per_second": over("bytes_per_second", kind)}
            for loader in LOADERS:
                result[loader][f"of_{kind}"] = over("bytes_per_second", loader, kind)
    result["ratio"] = over("batches_per_second", "shmloader", "torch")
    result["trainer_cpu_ratio"] = over("trainer_cpu", "shmloader", "torch")
    image_alone = {
        found["round"]: found["workers_cpu"]
        for found in measurements
        if found["case"] == CASES[case].image_alone and found["subject"] == "shmloader" and "failure" not in found
    }
    result["to_image_alone"] = spread(
        by["shmloader"]["workers_cpu"] / image_alone[by["shmloader"]["round"]]
        for by in rounds
        if "shmloader" in by and by["shmloader"]["round"] in image_alone
    )
    return result


def _table_of_columns(cases: dict[str, Any]) -> Table:
    """What workers pay for what is beside an image, or around it, or for another way to collate it."""
    title = "columns: workers' CPU a batch; two figures: torch | shmloader"
    made = table(title, ["case"], ["us/batch", "shmloader / shmloader with the image alone"])
    for case, figures in cases.items():
        both = " | ".join(shown(figures[loader]["workers_cpu"], 1e6) for loader in LOADERS)
        made.add_row(CASES[case].label, both, shown(figures["to_image_alone"], all_of_it=True))
    return made


def _draw_case(axes: Any, y: float, figures: dict[str, Any], batch_bytes: int) -> None:
    speeds = [figures[loader]["batches_per_second"] for loader in ("torch", "shmloader")]
    for kind in CEILINGS:
        if kind in figures and (speed := figures[kind]["bytes_per_second"]):
            at = speed["median"] / batch_bytes
            axes.plot([at, at], [y - 0.1, y + 0.3], color=INK, linewidth=1.4, linestyle=MARKS[kind], zorder=2)
    known = [speed["median"] for speed in speeds if speed]
    if not known:
        axes.text(0.5, y, "failed", color=PALE, va="center", transform=axes.get_yaxis_transform())
        return
    axes.plot(known, [y] * len(known), color="#cfcfcf", linewidth=3, solid_capstyle="round", zorder=1)
    for speed, colour in zip(speeds, (TORCH, OURS), strict=True):
        if speed:
            axes.plot([speed["min"], speed["max"]], [y, y], color=colour, linewidth=3, alpha=0.45, zorder=3)
            axes.plot(speed["median"], y, "o", color=colour, markersize=8, zorder=4)
            axes.annotate(
                shown(speed), (speed["median"], y), (0, -15), textcoords="offset points", ha="center", fontsize=8,
                color=colour,
            )  # fmt: skip
    if figures["ratio"]:
        middle = (known[0] * known[-1]) ** 0.5
        axes.annotate(
            f"x{shown(figures['ratio'])}", (middle, y), (0, 6), textcoords="offset points", ha="center", fontsize=10,
            fontweight="bold", color=INK,
        )  # fmt: skip


def _draw_legend(axes: Any, with_ceilings: bool) -> None:
    axes.plot([], [], "o", color=TORCH, label="torch")
    axes.plot([], [], "o", color=OURS, label="shmloader")
    if with_ceilings:
        for kind, mark in MARKS.items():
            axes.plot([], [], color=INK, linewidth=1.4, linestyle=mark, label=f"ceiling, {kind}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9, borderaxespad=0)
