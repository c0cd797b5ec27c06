"""Whether a batch costs more as one thing grows: workers, batches in flight, tensors, samples, sequences.

If the cost should not grow, the table shows whether it does: by how much the dearest point costs more than the first,
and how far the rounds of one point lie apart.  If the first number is the larger, the cost grows.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.picture import INK, OURS, PALE, TORCH, finish
from bench.core.question import Question, Turn, add_choice, add_start_method, count, seconds
from bench.core.results import failures, in_one_line, print_lines
from bench.core.spread import Spread, shown, spread
from bench.growth.measure import GROWS, NAP, TOTAL

LEAST_NOISE = 1.1  # what is less than a tenth apart is called the same, however alike the rounds are


@dataclass(frozen=True)
class Series:
    """What is plotted against one thing that grows.

    Args:
        label: of the x axis.
        figures: of the measurements, each a line.
        flat: which of them should not grow.
        each: whether that is said of the cost of one of what grows (of a tensor, say), and not of a batch.
        since: from which point on.
    """

    label: str
    figures: tuple[str, ...]
    flat: str
    each: bool = False
    since: int = 0


SERIES = {
    "workers": Series(
        f"workers; {TOTAL} samples that sleep {1000 * NAP:g} ms", ("trainer_cpu", "tree_cpu"), "trainer_cpu"
    ),
    "in_flight": Series("batches in flight; 2 workers, one scalar", ("seconds", "trainer_cpu"), "trainer_cpu"),
    "tensors": Series("tensors a batch; 2 workers", ("seconds", "trainer_cpu"), "seconds", True, 30),
    "samples": Series(
        "samples a batch, scalars; 2 workers", ("seconds", "trainer_cpu"), "seconds", each=True, since=64
    ),
    "sequences": Series("sequences so far; 2 workers, one scalar", ("seconds", "trainer_cpu"), "trainer_cpu"),
}
NAMES = {"seconds": "time", "trainer_cpu": "trainer CPU", "tree_cpu": "CPU of all processes"}
COLOURS = {"seconds": INK, "trainer_cpu": OURS, "tree_cpu": TORCH}
ACROSS = 3  # panels of the picture
LONG_RUN = 100_000  # sequences a second, about


class Growth(Question):
    name = "growth"
    asks = "what a batch costs as workers, batches in flight, tensors, samples or sequences grow"
    more = "Samples are simulated: they sleep, or cost nothing.  Writes growth.json and growth.png."

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        add_choice(parser, "--series", tuple(GROWS), "what grows")
        parser.add_argument("--seconds", type=seconds, default=0.4, help="length of the measurement of a point")
        parser.add_argument("--most", type=count, default=1_000_000, help="points beyond this are left out")
        add_start_method(parser)

    def settings(self) -> dict[str, Any]:
        return {"seconds": self.given.seconds, "start_method": self.given.start_method}

    def turns(self, at: int) -> list[Turn]:
        given = self.given
        return [
            Turn(
                {"series": what},
                "bench.growth.measure:costs",
                {"what": what, "most": given.most, "seconds": given.seconds, "start_method": given.start_method},
                self._length(what),
                given.timeout,
            )
            for what in given.series
        ]

    def _length(self, what: str) -> float:
        """Seconds, about, that the points of a series take."""
        points = [x for x in GROWS[what] if x <= self.given.most]
        if what == "sequences":
            return float(max(points, default=0) / LONG_RUN)
        if what == "workers":
            return sum(TOTAL * NAP / x + 0.1 * x for x in points)
        return float(len(points) * (2 * self.given.seconds + 0.3))

    def summary(self, measurements: list[dict[str, Any]]) -> dict[str, Any]:
        return {what: summary(what, measurements) for what in self.given.series}

    def show(self, out: Console, result: dict[str, Any]) -> None:
        rounds = result["settings"]["rounds"]
        table = Table(title=f"growth; rounds: {rounds}, medians \\[min..max], us a batch", title_justify="left")
        for heading in ("what grows", "to", *NAMES.values(), "resident MB", "should not grow"):
            left = heading.startswith(("what", "should"))
            table.add_column(heading, justify="left" if left else "right", no_wrap=True)
        for what, each in result["summary"].items():
            for k, point in enumerate(each["points"]):
                cells = (shown(point.get(figure), 1e6, all_of_it=True) for figure in NAMES)
                words = verdict(each) if k == 0 else ""
                table.add_row(what if k == 0 else "", f"{point['x']:,}", *cells, shown(point["resident"], 1e-6), words)
            table.add_section()
        out.print(table)
        print_lines(out, failures(result["measurements"], "series"), style="red")
        print_lines(out, [in_one_line(result["machine"])])

    def draw(self, result: dict[str, Any], path: Path) -> None:
        """A panel for each series."""
        from matplotlib.figure import Figure

        series = result["summary"]
        down = -(-len(series) // ACROSS)
        figure = Figure(figsize=(11, 0.9 + 2.9 * down), dpi=130, layout="constrained")
        panels = figure.subplots(down, ACROSS, squeeze=False).flat
        for panel in list(panels)[len(series) :]:
            panel.set_axis_off()
        for panel, (what, figures) in zip(figure.axes, series.items(), strict=False):
            _draw_series(panel, figures)
            panel.set_xlabel(SERIES[what].label, fontsize=8, color=INK)
        rounds = result["settings"]["rounds"]
        title = f"What a batch costs shmloader, us; median and spread of {rounds} rounds"
        finish(figure, title, result["machine"], path)


def summary(what: str, measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """The points of one series over all rounds, and whether its cost grows.

    Returns:
        points: x and, of each figure, median, min and max;
        flat: what should not grow, in words;
        growth: of that, the dearest point's median to the first one's;
        noise: the furthest apart that rounds of one point are, max to min, LEAST_NOISE at least;
        grows: whether the first is more than the second; None where there are no points.
    """
    series = SERIES[what]
    rounds = [each["points"] for each in measurements if each["series"] == what and "failure" not in each]
    figures = dict.fromkeys((*series.figures, series.flat, "resident"))
    points: list[dict[str, Any]] = [
        {"x": int(at[0]["x"])} | {figure: spread(point[figure] for point in at) for figure in figures}
        for at in zip(*rounds, strict=True)
    ]
    counted: list[Spread] = [
        {key: value / (point["x"] if series.each else 1) for key, value in point[series.flat].items()}
        for point in points
        if point["x"] >= series.since
    ]
    result: dict[str, Any] = {
        "points": points,
        "flat": f"{NAMES[series.flat]} {f'of one, from {series.since} on' if series.each else 'of a batch'}",
        "growth": None,
        "noise": None,
        "grows": None,
    }
    if counted:
        result["growth"] = max(each["median"] for each in counted) / counted[0]["median"]
        result["noise"] = max(LEAST_NOISE, *(each["max"] / each["min"] for each in counted))
        result["grows"] = result["growth"] > result["noise"]
    return result


def verdict(figures: dict[str, Any]) -> str:
    """Whether a series is flat, in one line."""
    if figures["grows"] is None:
        return f"{figures['flat']}: not measured"
    word = "GROWS" if figures["grows"] else "flat"
    return f"{figures['flat']}: {word}, x{figures['growth']:.2f} at most, noise x{figures['noise']:.2f}"


def _draw_series(panel: Any, figures: dict[str, Any]) -> None:
    from matplotlib.ticker import NullFormatter

    points = figures["points"]
    panel.set_title(verdict(figures).replace(": ", ":\n", 1), fontsize=7.5, color=INK, loc="left")
    panel.tick_params(labelsize=7)
    panel.grid(color="#e4e4e4", linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    if not points:
        panel.text(0.5, 0.5, "failed", color=PALE, ha="center", transform=panel.transAxes)
        return
    xs = [point["x"] for point in points]
    for figure, name in NAMES.items():
        if figure not in points[0]:
            continue
        low, middle, high = ([1e6 * point[figure][key] for point in points] for key in ("min", "median", "max"))
        panel.fill_between(xs, low, high, color=COLOURS[figure], alpha=0.2, linewidth=0)
        panel.plot(xs, middle, "o-", color=COLOURS[figure], markersize=3.5, linewidth=1.4, label=name)
    panel.set_xscale("log")
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.set_ylim(low / 2, high * 2)  # so that a flat line looks flat, and noise does not look like a mountain
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.legend(fontsize=7, frameon=False)
