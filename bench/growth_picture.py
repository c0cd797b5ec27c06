"""The picture of a growth run, for a README: what a batch costs against each thing that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bench.picture import INK, OURS, PALE, TORCH, finish

COLOURS = {"seconds": INK, "trainer_cpu": OURS, "tree_cpu": TORCH}
ACROSS = 3


def draw(result: dict[str, Any], labels: dict[str, str], names: dict[str, str], path: Path) -> None:
    """Draw the summary of a growth run as a PNG, a panel a series.

    Args:
        result: of growth.run().
        labels: of each series' x axis.
        names: of the figures.
    """
    summary = result["summary"]
    down = -(-len(summary) // ACROSS)
    figure = Figure(figsize=(11, 0.9 + 2.9 * down), dpi=130, layout="constrained")
    panels = figure.subplots(down, ACROSS, squeeze=False).flat
    for panel in list(panels)[len(summary) :]:
        panel.set_axis_off()
    for panel, (series, of) in zip(figure.axes, summary.items(), strict=False):
        _draw_series(panel, of, names)
        panel.set_xlabel(labels[series], fontsize=8, color=INK)
    rounds = result["settings"]["rounds"]
    finish(figure, f"What a batch costs shmloader, us; median and spread of {rounds} rounds", result["machine"], path)


def _draw_series(panel: Any, of: dict[str, Any], names: dict[str, str]) -> None:
    points = of["points"]
    panel.set_title(_verdict(of), fontsize=7.5, color=INK, loc="left")
    panel.tick_params(labelsize=7)
    panel.grid(color="#e4e4e4", linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    if not points:
        panel.text(0.5, 0.5, "failed", color=PALE, ha="center", transform=panel.transAxes)
        return
    xs = [point["x"] for point in points]
    for figure, name in names.items():
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


def _verdict(of: dict[str, Any]) -> str:
    if of["grows"] is None:
        return ""
    return f"{of['flat']}:\n{'grows' if of['grows'] else 'flat'}, x{of['growth']:.2f} at most; noise x{of['noise']:.2f}"
