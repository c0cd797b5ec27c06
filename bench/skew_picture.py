"""The picture of a skew run: for each loader a bar up to the limit, of which its workers were idle for a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.picture import INK, OURS, TORCH, finish, unframe
from bench.skew_measure import LOADERS
from bench.spread import shown
from bench.uneven import SKEWS

COLOURS = dict(zip(LOADERS, (TORCH, "#5fa8b0", "#3f93a0", OURS, "#003d4c"), strict=True))


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the summary of a skew run as a PNG, a panel for each case."""
    cases = result["summary"]
    figure = Figure(figsize=(9, 0.8 + 1.9 * len(cases)), dpi=150, layout="constrained")
    for axes, (case, of) in zip(figure.subplots(len(cases), squeeze=False)[:, 0], cases.items(), strict=True):
        loaders = of["loaders"]
        for row, (loader, its) in enumerate(loaders.items()):
            speed = its["samples_per_second"]
            if not speed:
                axes.text(0, -row, " failed", color=INK, va="center", fontsize=8)
                continue
            axes.barh(-row, speed["median"], height=0.6, color=COLOURS[loader], zorder=2)
            axes.plot([speed["min"], speed["max"]], [-row, -row], color=INK, linewidth=1.2, zorder=3)
            said = f" {shown(speed)}; workers idle {shown(its['idle'], 100)} %"
            axes.text(0, -row, said, color="white", va="center", fontsize=9, zorder=4)
        if of["limit"]:
            axes.axvline(of["limit"], color=INK, linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
        axes.set_title(SKEWS[case].label, loc="left", fontsize=10, color=INK)
        axes.set_yticks([-row for row in range(len(loaders))], [LOADERS[name] for name in loaders], fontsize=9)
        axes.tick_params(axis="y", length=0)
        unframe(axes)
    axes.set_xlabel("samples a second; dashed: no worker ever idle, no sample late", color=INK)
    settings = result["settings"]
    title = f"Uneven samples: {settings['workers']} workers, batches of {settings['batch_size']}"
    finish(figure, f"{title}, rounds: {settings['rounds']}", result["machine"], path)
