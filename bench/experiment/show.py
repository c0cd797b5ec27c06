"""An experiment in print and as a picture: how far each loader is from the limit, and how soon it has a first batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.picture import INK, OURS, PALE, TORCH, finish, unframe
from bench.core.results import failures, in_one_line, print_lines
from bench.core.spread import Spread, shown
from bench.experiment.measure import LOADERS, SERIAL
from bench.experiment.profiles import FLOWS, WORKERS

COLOURS = dict(zip(LOADERS, (PALE, TORCH, "#7fc8cf", OURS, "#003d4c", "#edae49"), strict=True))


def print_tables(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    about = f"experiment; scale: {settings['scale']:g}, rounds: {settings['rounds']}, medians"
    steps = settings["iterations"] - settings["ignored"]
    _table(
        out,
        result,
        f"{about}: seconds for {steps} steps, and % above the limit | above that with the overshoot",
        {"limit s": "limit", "with\novershoot": "limit_with_overshoot"},
        lambda value: (
            f"{shown(value['total'])} ({_percent(value['distance'])} | {_percent(value['distance_with_overshoot'])})"
            if value["total"]
            else "-"
        ),
    )
    _table(out, result, f"{about}: part of these seconds blocked in next()", {}, lambda value: _part(value["blocked"]))
    _table(
        out,
        result,
        f"{about}: seconds from creation to the first batch (in chunks no sooner than D / {WORKERS})",
        {"D s": "data", "inference s": "inference"},
        lambda value: shown(value["first"]),
    )
    print_lines(out, failures(result["measurements"], "case", "flow", "subject"), style="red")
    print_lines(
        out, [f"skipped: {value['case']}, {value['subject']}: {value['why']}" for value in result["skipped"]], "yellow"
    )
    if any(SERIAL in value["loaders"] for flows in result["summary"].values() for value in flows.values()):
        counted = settings["serial_iterations"] - settings["serial_ignored"]
        print_lines(out, [f"{SERIAL}: measured over {counted} steps and multiplied: each costs D + I exactly"])
    print_lines(out, [*result["notes"], *_touching(result), in_one_line(result["machine"])])


def _table(out: Console, result: dict[str, Any], title: str, given: dict[str, str], figure: Any) -> None:
    print_lines(out, [title], style="italic")  # above it and not in it: it may be wider than the table
    table = Table(padding=(0, 1, 0, 0))
    loaders = [name for name in LOADERS if any(name in each["loaders"] for each in _rows(result))]
    table.add_column("case", no_wrap=True)
    table.add_column("flow", no_wrap=True)
    for heading in (*given, *loaders):
        table.add_column(heading, justify="right", no_wrap=True)
    for case, flows in result["summary"].items():
        for k, (flow, each) in enumerate(flows.items()):
            table.add_row(
                "" if k else case,
                flow,
                *(shown({"median": each[key], "min": each[key], "max": each[key]}) for key in given.values()),
                *(figure(each["loaders"][name]) for name in loaders),
                end_section=k == len(flows) - 1,
            )
    out.print(table)


def _rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for flows in result["summary"].values() for each in flows.values()]


def _touching(result: dict[str, Any]) -> list[str]:
    """What it costs to touch the large batches' pages, and whether the inference was long enough for it."""
    lines = []
    for case, flows in result["summary"].items():
        cells = [each for by in flows.values() for each in by["loaders"].values() if each["touch"]]
        touches = [each["touch"]["median"] * 1e3 for each in cells]
        if touches and max(touches) > 1:
            late = sum(each["late"] for each in cells)
            lines.append(
                f"{case}: touching a batch's pages, a part of the inference, takes {min(touches):.2g} to "
                f"{max(touches):.2g} ms; steps in which that was longer than the inference was to last: {late}"
            )
    return lines


def _percent(figures: Spread | None) -> str:
    return "-" if figures is None else f"{figures['median'] * 100:+.0f}"


def _part(figures: Spread | None) -> str:
    return "-" if figures is None else f"{figures['median']:.4f}"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the summary of a run as a PNG: a column for each case, above the steps and below the first batches."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    cases = result["summary"]
    loaders = [
        name for name in LOADERS if any(name in each["loaders"] for by in cases.values() for each in by.values())
    ]
    figure = Figure(figsize=(max(9, 2 + 2.5 * len(cases)), 6), dpi=150, layout="constrained")
    grid = figure.add_gridspec(3, len(cases), height_ratios=(0.2, 1, 1))
    panels = [[figure.add_subplot(grid[row, column]) for column in range(len(cases))] for row in (1, 2)]
    for (case, flows), steps, first in zip(cases.items(), panels[0], panels[1], strict=True):
        rows = {flow: -row for row, flow in enumerate(flows)}
        for flow, y in rows.items():
            _dots(steps, y, flows[flow]["loaders"], loaders, "total", 1 / flows[flow]["limit"])
            _dots(first, y, flows[flow]["loaders"], loaders, "first", 1 / flows[flow]["data"])
        steps.axvline(1, color=INK, linewidth=1.2, zorder=1)
        for bound in (1, 1 / WORKERS):
            first.axvline(bound, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
        steps.set_title(case, loc="left", fontsize=10, color=INK)
        for axes, meaning in (
            (steps, "time of a step / limit"),
            (first, f"first batch / D; dashed: D and D/{WORKERS}"),
        ):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
            axes.tick_params(axis="x", labelsize=8)
            axes.set_xlabel(meaning, fontsize=8, color=INK)
            axes.set_ylim(-len(flows) + 0.4, 0.6)
            axes.set_yticks(list(rows.values()), [f"{flow} (x{FLOWS[flow]})" for flow in rows], fontsize=9, color=INK)
            axes.tick_params(axis="y", length=0)
            unframe(axes)
    legend = figure.add_subplot(grid[0, :])
    legend.axis("off")
    for name in loaders:
        legend.plot([], [], "o", color=COLOURS[name], label=LOADERS[name])
    marks = legend.legend(loc="upper left", ncols=3, frameon=False, fontsize=8, borderaxespad=0)
    marks.set_in_layout(False)  # otherwise its width becomes that of the first column
    settings = result["settings"]
    finish(
        figure,
        f"Loading that takes long: {WORKERS} workers, {settings['scale']:g} of the documented times, "
        f"rounds: {settings['rounds']}",
        result["machine"],
        path,
    )


def _dots(axes: Any, y: float, figures: dict[str, Any], loaders: list[str], figure: str, scale: float) -> None:
    """One dot for each loader, one under the other so that equal ones can be told apart."""
    for k, name in enumerate(loaders):
        if spread := figures[name][figure]:
            at = y + 0.3 - 0.6 * (k + 0.5) / len(loaders)
            ends = [spread["min"] * scale, spread["max"] * scale]
            axes.plot(ends, [at, at], color=COLOURS[name], linewidth=2.5, alpha=0.45, zorder=2)
            axes.plot(spread["median"] * scale, at, "o", color=COLOURS[name], markersize=5, zorder=3)
