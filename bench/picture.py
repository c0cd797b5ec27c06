"""The picture of a transport run, for a README: both loaders on one logarithmic scale, and the ceilings.

Also what all pictures share: their colours, their frame, and how they are written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.cases import CASES
from bench.ceiling import CEILINGS
from bench.machine import in_one_line
from bench.spread import shown

TORCH, OURS, INK, PALE = "#d1495b", "#00798c", "#222222", "#8a8a8a"
MARKS = {"memcpy": (0, (4, 2)), "streaming": (0, (1, 1))}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the summary of a transport run as a PNG; without pyplot, so matplotlib renders by Agg, wherever it runs."""
    cases = result["summary"]
    figure = Figure(figsize=(9, 1.6 + 0.72 * len(cases)), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for row, (case, of) in enumerate(cases.items()):
        _draw_case(axes, -row, of, result["settings"]["batch_bytes"][case])
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.6, high * 1.6)  # room for the figures beside the dots
    axes.set_ylim(-len(cases) + 0.4, 0.6)
    axes.set_yticks([-row for row in range(len(cases))], [CASES[case].label for case in cases], fontsize=10, color=INK)
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


def unframe(axes: Any) -> None:
    """Leave of the frame the axis that is read, and give it lines to read by."""
    axes.grid(axis="x", which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def finish(figure: Figure, title: str, machine: dict[str, Any], path: Path) -> None:
    """Say what it shows and what it was measured on, and write the PNG."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    figure.supxlabel(in_one_line(machine), x=0.01, ha="left", fontsize=6.5, color=PALE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")


def _draw_case(axes: Any, y: float, of: dict[str, Any], batch_bytes: int) -> None:
    speeds = [of[loader]["batches_per_second"] for loader in ("torch", "shmloader")]
    for kind in CEILINGS:
        if kind in of and (speed := of[kind]["bytes_per_second"]):
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
    if of["ratio"]:
        middle = (known[0] * known[-1]) ** 0.5
        axes.annotate(
            f"x{shown(of['ratio'])}", (middle, y), (0, 6), textcoords="offset points", ha="center", fontsize=10,
            fontweight="bold", color=INK,
        )  # fmt: skip


def _draw_legend(axes: Any, with_ceilings: bool) -> None:
    axes.plot([], [], "o", color=TORCH, label="torch")
    axes.plot([], [], "o", color=OURS, label="shmloader")
    if with_ceilings:
        for kind, mark in MARKS.items():
            axes.plot([], [], color=INK, linewidth=1.4, linestyle=mark, label=f"ceiling, {kind}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9, borderaxespad=0)
