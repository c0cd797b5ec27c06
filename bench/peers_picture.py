"""The picture of a peers run, for a README: every loader a dot on one logarithmic scale a case, and the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench.adapters import LOADERS, OURS
from bench.cases import CASES, label
from bench.picture import INK, PALE, finish, unframe
from bench.picture import OURS as OUR_COLOUR
from bench.spread import shown

COLOURS = ("#d1495b", "#edae49", "#8d6a9f", "#66a182", "#2e4057", "#c17c74", "#7f8c8d", "#b08968")
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the summary of a peers run as a PNG; without pyplot, so matplotlib renders by Agg, wherever it runs."""
    cases = result["summary"]
    rates = [case for case in cases if case in CASES]
    times = [case for case in cases if case not in CASES]
    panels = [panel for panel in (rates, times) if panel]
    figure = Figure(figsize=(10, 1.9 + 0.72 * len(cases) + 0.5 * len(panels)), dpi=130, layout="constrained")
    axes_of = figure.subplots(len(panels), 1, squeeze=False, height_ratios=[len(panel) + 0.4 for panel in panels])
    for axes, panel in zip(axes_of[:, 0], panels, strict=True):
        timed = panel is times
        for row, case in enumerate(panel):
            _draw_case(axes, -row, cases[case], "seconds" if timed else "batches_per_second")
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low / 1.6, high * 1.6)
        axes.set_ylim(-len(panel) + 0.4, 0.6)
        labels = [
            label(case).replace(": ", ":\n", 1).replace(", ", ",\n", 1) if timed else label(case) for case in panel
        ]
        axes.set_yticks([-row for row in range(len(panel))], labels, fontsize=9, color=INK)
        axes.set_xlabel(
            "seconds, logarithmic: less is better" if timed else "batches a second, logarithmic", color=INK, fontsize=9
        )
        axes.tick_params(axis="y", length=0)
        unframe(axes)
    _draw_legend(axes_of[0, 0], cases)
    settings = result["settings"]
    finish(
        figure,
        f"Loaders beside one another: {settings['workers']} workers, median of {settings['rounds']} rounds; "
        "in bold, shmloader to the best peer",
        result["machine"],
        path,
    )


def _looks(subject: str) -> dict[str, Any]:
    if subject == OURS:
        return {"color": OUR_COLOUR, "marker": "o", "markersize": 9}
    number = list(LOADERS).index(subject)
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 6}


def _draw_case(axes: Any, y: float, of: dict[str, Any], figure: str) -> None:
    known = {subject: of[subject][figure] for subject in of if subject in LOADERS and "failure" not in of[subject]}
    if not known:
        axes.text(0.5, y, "nothing measured", color=PALE, va="center", transform=axes.get_yaxis_transform())
        return
    medians = [speed["median"] for speed in known.values()]
    axes.plot([min(medians), max(medians)], [y, y], color="#dcdcdc", linewidth=2, solid_capstyle="round", zorder=1)
    if limit := of["limit"][figure]:
        axes.plot([limit["median"]] * 2, [y - 0.3, y + 0.3], color=INK, linewidth=1.4, linestyle=(0, (4, 2)), zorder=2)
    for subject, speed in known.items():
        looks = _looks(subject)
        axes.plot([speed["min"], speed["max"]], [y, y], color=looks["color"], linewidth=3, alpha=0.4, zorder=3)
        axes.plot(speed["median"], y, linestyle="", alpha=0.9, zorder=5 if subject == OURS else 4, **looks)
    if OURS in known:
        axes.annotate(
            shown(known[OURS]), (known[OURS]["median"], y), (0, -15), textcoords="offset points", ha="center",
            fontsize=8, color=OUR_COLOUR,
        )  # fmt: skip
        if of["best"]:
            between = (known[OURS]["median"] * known[of["best"]]["median"]) ** 0.5
            axes.annotate(
                f"x{shown(of[of['best']]['ours'])}", (between, y), (0, 7), textcoords="offset points", ha="center",
                fontsize=9, fontweight="bold", color=INK,
            )  # fmt: skip


def _draw_legend(axes: Any, cases: dict[str, Any]) -> None:
    shown_ones = {
        subject for of in cases.values() for subject in of if subject in LOADERS and "failure" not in of[subject]
    }
    for subject in LOADERS:
        if subject in shown_ones:
            axes.plot([], [], linestyle="", label=LOADERS[subject].label, **_looks(subject))
    axes.plot([], [], color=INK, linewidth=1.4, linestyle=(0, (4, 2)), label="limit")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=8, borderaxespad=0)
