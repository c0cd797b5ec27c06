"""The figures of large clusters in print, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.picture import INK, OURS, PALE, TORCH, finish
from bench.core.results import failures, in_one_line, print_lines
from bench.core.spread import shown
from bench.scale.clusters import FAR_OF_ALL, GIGABITS, KINDS, SCHEDULES, TRAINERS, TROUBLES
from bench.scale.parts import CLUSTER, FAR, FLEET, LATENCY, REQUESTS, SILENCE

COLOURS = {10: PALE, 25: "#edae49", 100: OURS}
DEPTH_COLOURS = (TORCH, "#edae49", "#7fc8cf", OURS)
NAMES = {"none": "no trouble", "slow": "5 % are 3 times slower", "vanish": "nodes vanish"}


def print_tables(out: Console, result: dict[str, Any]) -> None:
    found = result["summary"]
    if found[CLUSTER]:
        out.print(_cluster(found[CLUSTER]))
    for part, heading in ((FAR, "far workers"), (LATENCY, "s of latency"), (REQUESTS, "requests to each")):
        if found[part]:
            out.print(_curves(found[part], heading))
    if found[FLEET]:
        out.print(_fleet(found[FLEET]))
    print_lines(
        out,
        [
            f"a node of two vanishes, noticed after {each['noticed']} s: {each['rate']:.0f} batches/s in that minute"
            for each in found[SILENCE]
        ],
    )
    print_lines(out, failures(result["measurements"], "part"), style="red")
    print_lines(out, [in_one_line(result["machine"])])


def _cluster(cases: dict[str, Any]) -> Table:
    table = Table(title="three nodes on this machine: batches a second", title_justify="left")
    for heading in ("workers", "measured", "simulated", "differs"):
        table.add_column(heading)
    for case, each in cases.items():
        simulated = f"{each['simulated']:.1f}"
        table.add_row(case, shown(each["measured"], all_of_it=True), simulated, f"{each['differs']:+.0%}")
    return table


def _name(each: dict[str, Any]) -> str:
    """The labels of a curve."""
    return ", ".join(f"{label}={each[label]}" for label in each if label not in ("part", "round", "points"))


def _curves(curves: list[dict[str, Any]], heading: str) -> Table:
    table = Table(title="simulated: batches a second, and what limits them", title_justify="left")
    table.add_column(heading)
    for each in curves:
        table.add_column(_name(each))
    for row in zip(*(each["points"] for each in curves), strict=True):
        table.add_row(f"{row[0]['at']:g}", *(f"{point['rate']:.1f} {point['bottleneck']}" for point in row))
    return table


def _fleet(runs: list[dict[str, Any]]) -> Table:
    title = f"simulated: batches a second of each of {TRAINERS} trainers with {FAR_OF_ALL} far workers"
    table = Table(title=title, title_justify="left")
    for heading in (
        "batch",
        "Gb/s",
        "trainers on a node",
        "trouble",
        "schedule",
        "batches/s",
        "the slowest trainer",
        "bottleneck",
    ):
        table.add_column(heading)
    for each in runs:
        labels = each["kind"], each["gigabits"], each["on_a_node"], NAMES[each["trouble"]], each["schedule"]
        table.add_row(*labels, f"{each['rate']:.1f}", f"{each['least']:.1f}", each["bottleneck"])
    return table


def draw(result: dict[str, Any], path: Path) -> None:
    """Four panels: far workers for two kinds of batches, latency, and 64 trainers."""
    from matplotlib.figure import Figure

    found = result["summary"]
    if not any(found[part] for part in (FAR, LATENCY, FLEET)):
        return
    figure = Figure(figsize=(11, 8), dpi=150, layout="constrained")
    (uint8, float32), (latency, fleet) = figure.subplots(2, 2)
    for axes, kind in ((uint8, "uint8"), (float32, "float32")):
        _draw_far(axes, KINDS[kind].label, [each for each in found[FAR] if each["kind"] == kind])
    _draw_latency(latency, found[LATENCY])
    _draw_fleet(fleet, [each for each in found[FLEET] if each["kind"] == "uint8"])
    finish(
        figure, "Far workers on large clusters, simulated with the costs that were measured", result["machine"], path
    )


def _draw_far(axes: Any, title: str, curves: list[dict[str, Any]]) -> None:
    for each in curves:
        gigabits, cores = int(each["gigabits"]), int(each["cores"])
        style = "-" if cores > 1 else "--"
        label = f"{gigabits} Gb/s, {cores} core{'s' if cores > 1 else ''} for stand-ins"
        at, rates = _of(each)
        axes.plot(at, rates, style, marker="o", markersize=3, color=COLOURS[gigabits], label=label)
    _dress(axes, title, "far workers of one trainer")


def _draw_latency(axes: Any, curves: list[dict[str, Any]]) -> None:
    for each, colour in zip(curves, DEPTH_COLOURS, strict=False):
        at, rates = _of(each)
        label = f"in_flight={each['in_flight']}, prefetch_factor={each['prefetch_factor']}"
        axes.plot([1e3 * one for one in at], rates, marker="o", markersize=3, color=colour, label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    _dress(axes, "uint8, 16 far workers at 100 Gb/s", "latency in each direction, ms")


def _draw_fleet(axes: Any, runs: list[dict[str, Any]]) -> None:
    for column, gigabits in enumerate(GIGABITS):
        for bar, (trouble, schedule) in enumerate((one, by) for one in TROUBLES for by in SCHEDULES):
            its = [
                each
                for each in runs
                if [each[name] for name in ("gigabits", "trouble", "schedule", "on_a_node")]
                == [str(gigabits), trouble, schedule, "1"]
            ]
            if its:
                steals = schedule == "steal"
                colour = (OURS, "#7fc8cf", "#003d4c")[TROUBLES.index(trouble)] if steals else "#ffffff"
                label = f"{NAMES[trouble]}, {schedule.replace('_', ' ')}" if column == 0 else None
                axes.bar(
                    column + (bar - 2.5) * 0.14, its[0]["rate"], 0.12, color=colour, label=label,
                    edgecolor=(OURS, "#7fc8cf", "#003d4c")[TROUBLES.index(trouble)],
                )  # fmt: skip
    axes.set_xticks(range(len(GIGABITS)), [f"{gigabits} Gb/s" for gigabits in GIGABITS])
    if runs:
        axes.set_ylim(0, 1.4 * max(each["rate"] for each in runs))  # room for the legend
    _dress(axes, f"uint8, {TRAINERS} trainers with {FAR_OF_ALL:,} far workers", "network of each node")


def _of(curve: dict[str, Any]) -> tuple[list[float], list[float]]:
    return [point["at"] for point in curve["points"]], [point["rate"] for point in curve["points"]]


def _dress(axes: Any, title: str, x: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel("batches a second of a trainer", fontsize=8, color=INK)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
