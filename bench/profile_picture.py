"""The picture of a profile experiment: how far each loader is from the limit, and how soon it has a first batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.experiment import FLOWS, WORKERS
from bench.picture import INK, OURS, PALE, TORCH, finish, unframe
from bench.profile_loaders import LOADERS

COLOURS = dict(zip(LOADERS, (PALE, TORCH, "#7fc8cf", OURS, "#003d4c", "#edae49"), strict=True))


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the summary of a run as a PNG: a column for each case, above the steps and below the first batches."""
    cases = result["summary"]
    loaders = [name for name in LOADERS if any(name in of["loaders"] for by in cases.values() for of in by.values())]
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
    marks.set_in_layout(False)  # else its width becomes that of the first column
    settings = result["settings"]
    finish(
        figure,
        f"Loading that takes long: {WORKERS} workers, {settings['scale']:g} of the documented times, "
        f"rounds: {settings['rounds']}",
        result["machine"],
        path,
    )


def _dots(axes: Any, y: float, of: dict[str, Any], loaders: list[str], figure: str, scale: float) -> None:
    """One dot for each loader, one under the other so that equal ones can be told apart."""
    for k, name in enumerate(loaders):
        if spread := of[name][figure]:
            at = y + 0.3 - 0.6 * (k + 0.5) / len(loaders)
            ends = [spread["min"] * scale, spread["max"] * scale]
            axes.plot(ends, [at, at], color=COLOURS[name], linewidth=2.5, alpha=0.45, zorder=2)
            axes.plot(spread["median"] * scale, at, "o", color=COLOURS[name], markersize=5, zorder=3)
