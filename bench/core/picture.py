"""Shared by all pictures: their colours, their frame, and how they are written.

They are drawn without pyplot, so that matplotlib renders by Agg, wherever it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.core.results import in_one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TORCH, OURS, INK, PALE = "#d1495b", "#00798c", "#222222", "#8a8a8a"


def unframe(axes: Any) -> None:
    """Keep only the axis that is read, with grid lines."""
    axes.grid(axis="x", which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def finish(figure: Figure, title: str, machine: dict[str, Any], path: Path) -> None:
    """Add a title and the machine, and write the PNG."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, color=INK)
    figure.supxlabel(in_one_line(machine), x=0.01, ha="left", fontsize=6.5, color=PALE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")
