"""A race in print and as a picture: each loader beside the others, and the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.core.cases import CASES
from bench.core.loaders import OURS
from bench.core.picture import INK, PALE, finish, unframe
from bench.core.picture import OURS as TEAL
from bench.core.results import in_one_line, print_lines, table
from bench.core.spread import shown
from bench.peers.loaders import LOADERS
from bench.peers.measure import MEANING, SPAWN, label

MILLION = 1e6
COLOURS = ("#d1495b", "#edae49", "#8d6a9f", "#66a182", "#2e4057", "#c17c74", "#7f8c8d", "#b08968")
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
# A heading, its figures, by what to multiply them, and whether with their spread.
RATE_COLUMNS = (
    ("batches/s", ("batches_per_second",), 1, True),
    ("% of\nlimit", ("of_limit",), 100, False),
    ("shmloader is\ntimes as quick", ("ours",), 1, True),
    ("GB/s", ("bytes_per_second",), 1e-9, False),
    ("CPU us/batch\ntrainer | all", ("trainer_cpu", "tree_cpu"), MILLION, False),
    ("CPU s\nall", ("tree_seconds",), 1, False),
    ("faults/batch\ntrainer | all", ("trainer_faults", "tree_faults"), 1, False),
    ("next() us\np50 | p99 | max", ("next_p50", "next_p99", "next_max"), MILLION, False),
    ("shared\npeak MB", ("shared_peak",), 1e-6, False),
    ("start-up\nms", ("start_up",), 1e3, False),
)
TIME_COLUMNS = (
    ("ms", ("seconds",), 1e3, True),
    ("% of\nlimit", ("of_limit",), 100, False),
    ("shmloader is\ntimes as quick", ("ours",), 1, True),
    ("CPU s\nall", ("tree_seconds",), 1, False),
    ("shared\npeak MB", ("shared_peak",), 1e-6, False),
)


def print_tables(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    workers = f"{settings['workers']} by {settings['start_method']}, {settings['prefetch_factor']} batches ahead each"
    rounds = f"rounds: {settings['rounds']}, medians [min..max]; took {settings['took']} s"
    print_lines(out, [f"peers; workers: {workers}; {rounds}"])
    for case, each in result["summary"].items():
        out.print(_table(case, each))
    print_lines(out, _notes(result))


def _table(case: str, values: dict[str, Any]) -> Table:
    columns = RATE_COLUMNS if case in CASES else TIME_COLUMNS
    headings = (heading for heading, *_ in columns)
    made = table(label(case), [""], headings, caption_justify="left", padding=(0, 1, 0, 0))
    (figure, *_), scale = columns[0][1:3]
    captions = [f"limit: {shown(values['limit'][figure], scale, all_of_it=True)}, {limit_of(case)}"]
    for subject, figures in values.items():
        if subject in LOADERS and "failure" in figures:
            captions.append(f"skipped: {LOADERS[subject].label}, {figures['failure']}")
        elif subject in LOADERS:
            best = " (best peer)" if subject == values["best"] else ""
            cells = [" | ".join(shown(figures[k], by, wide) for k in names) for _, names, by, wide in columns]
            made.add_row(LOADERS[subject].label + best, *cells, style="bold" if subject == OURS else "")
    made.caption = Text("\n".join(captions))
    return made


def limit_of(case: str) -> str:
    """What the limit of a case is, in words."""
    if case not in CASES:
        return "bare processes that import torch" if case == SPAWN else "one wake-up"
    if CASES[case].has_work:
        return "the dataset's and the collate function's own code in as many processes, without handing anything over"
    return "memcpy by as many processes, and handing over"


def _notes(result: dict[str, Any]) -> list[str]:
    lines = [
        f"limit, {name}: {shown(each, MILLION if name == 'wake_up' else 1e9, all_of_it=True)}: {MEANING[name]}"
        for name, each in result["limits"].items()
    ]
    lines += [f"{each.label}: {each.note}" for each in LOADERS.values() if each.note]
    if result["settings"]["jpegs"]:
        lines.append(f"JPEGs: {result['settings']['jpegs']}")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return [*lines, versions, in_one_line(result["machine"])]


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw every loader as a dot on one logarithmic scale a case, and the limit."""
    from matplotlib.figure import Figure

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
        return {"color": TEAL, "marker": "o", "markersize": 9}
    number = list(LOADERS).index(subject)
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 6}


def _draw_case(axes: Any, y: float, figures: dict[str, Any], figure: str) -> None:
    known = {
        subject: figures[subject][figure]
        for subject in figures
        if subject in LOADERS and "failure" not in figures[subject]
    }
    if not known:
        axes.text(0.5, y, "nothing measured", color=PALE, va="center", transform=axes.get_yaxis_transform())
        return
    medians = [speed["median"] for speed in known.values()]
    axes.plot([min(medians), max(medians)], [y, y], color="#dcdcdc", linewidth=2, solid_capstyle="round", zorder=1)
    if limit := figures["limit"][figure]:
        axes.plot([limit["median"]] * 2, [y - 0.3, y + 0.3], color=INK, linewidth=1.4, linestyle=(0, (4, 2)), zorder=2)
    for subject, speed in known.items():
        looks = _looks(subject)
        axes.plot([speed["min"], speed["max"]], [y, y], color=looks["color"], linewidth=3, alpha=0.4, zorder=3)
        axes.plot(speed["median"], y, linestyle="", alpha=0.9, zorder=5 if subject == OURS else 4, **looks)
    if OURS in known:
        axes.annotate(
            shown(known[OURS]), (known[OURS]["median"], y), (0, -15), textcoords="offset points", ha="center",
            fontsize=8, color=TEAL,
        )  # fmt: skip
        if figures["best"]:
            between = (known[OURS]["median"] * known[figures["best"]]["median"]) ** 0.5
            axes.annotate(
                f"x{shown(figures[figures['best']]['ours'])}", (between, y), (0, 7), textcoords="offset points",
                ha="center", fontsize=9, fontweight="bold", color=INK,
            )  # fmt: skip


def _draw_legend(axes: Any, cases: dict[str, Any]) -> None:
    shown_ones = {
        subject for each in cases.values() for subject in each if subject in LOADERS and "failure" not in each[subject]
    }
    for subject in LOADERS:
        if subject in shown_ones:
            axes.plot([], [], linestyle="", label=LOADERS[subject].label, **_looks(subject))
    axes.plot([], [], color=INK, linewidth=1.4, linestyle=(0, (4, 2)), label="limit")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=8, borderaxespad=0)
