"""What a batch costs as one thing grows: workers, batches in flight, tensors, samples, sequences.

Where the cost should not grow it is said whether it does: by how much the dearest point costs more than the first, and
how far the rounds of one point lie apart.  More than the second is growth.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.growing import NAP, TOTAL
from bench.growth_picture import draw
from bench.machine import in_one_line, machine
from bench.results import console, failures, measured, print_lines, write
from bench.spread import Spread, shown, spread

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


def run(
    series: list[str], rounds: int, seconds: float, most: int, start_method: str, timeout: float, output: Path
) -> int:
    """Measure, print the table, write growth.json and growth.png; returns 1 where a measurement failed."""
    out = console()
    measurements = []
    for at in range(rounds):
        for what in series:
            out.print(f"round {at + 1} of {rounds}: {what}", style="dim", highlight=False)
            arguments = {"what": what, "most": most, "seconds": seconds, "start_method": start_method}
            measurements.append({"round": at, "series": what} | measured("bench.growing:costs", arguments, timeout))
    result: dict[str, Any] = {
        "bench": "growth",
        "machine": machine(),
        "settings": {"rounds": rounds, "seconds": seconds, "start_method": start_method},
        "summary": {what: summary(what, measurements) for what in series},
        "measurements": measurements,
    }
    write(result, output / "growth.json")
    draw(result, {what: SERIES[what].label for what in series}, NAMES, output / "growth.png")
    table = Table(title=f"growth; rounds: {rounds}, medians \\[min..max], us a batch", title_justify="left")
    for heading in ("what grows", "to", *NAMES.values(), "resident MB", "should not grow"):
        table.add_column(heading, justify="left" if heading.startswith(("what", "should")) else "right", no_wrap=True)
    for what, of in result["summary"].items():
        for k, point in enumerate(of["points"]):
            cells = (shown(point.get(figure), 1e6, all_of_it=True) for figure in NAMES)
            words = verdict(of) if k == 0 else ""
            table.add_row(what if k == 0 else "", f"{point['x']:,}", *cells, shown(point["resident"], 1e-6), words)
        table.add_section()
    out.print(table)
    print_lines(out, failures(measurements, "series"), style="red")
    print_lines(out, [in_one_line(result["machine"])])
    return 1 if any("failure" in of for of in measurements) else 0


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
    rounds = [of["points"] for of in measurements if of["series"] == what and "failure" not in of]
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
        result["growth"] = max(of["median"] for of in counted) / counted[0]["median"]
        result["noise"] = max(LEAST_NOISE, *(of["max"] / of["min"] for of in counted))
        result["grows"] = result["growth"] > result["noise"]
    return result


def verdict(of: dict[str, Any]) -> str:
    """Whether a series is flat, in one line."""
    if of["grows"] is None:
        return f"{of['flat']}: not measured"
    word = "GROWS" if of["grows"] else "flat"
    return f"{of['flat']}: {word}, x{of['growth']:.2f} at most, noise x{of['noise']:.2f}"
