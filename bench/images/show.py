"""The figures of decoders in print, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.core.picture import INK, OURS, PALE, TORCH, finish, unframe
from bench.core.results import in_one_line, print_lines, table
from bench.core.spread import shown
from bench.images.methods import EXACT, FAST, FLOOR, METHODS, ROWS

COLUMNS = {  # a figure, its heading, and whether with its spread
    "images_per_cpu_second": ("images/CPU s", True),
    "ratio": ("/ PIL", True),
    "difference": ("mean\ndifference", False),
    "pooled": ("PSNR dB\npooled", False),
    "worst": ("worst\nimage", False),
}
BY_US = (EXACT, FAST, ROWS)


def print_table(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    made = table(
        f"images; files in memory, one process on one core; {settings['files']}; rounds: {settings['rounds']}, "
        f"medians \\[min..max]; took {settings['took']} s",
        [""],
        [heading for heading, _ in COLUMNS.values()],
        caption_justify="left",
    )
    skipped = []
    for method, its in result["summary"].items():
        if "failure" in its:
            skipped.append(f"skipped: {METHODS[method].label}, {its['failure']}")
            continue
        cells = [shown(its[figure], 1, wide) for figure, (_, wide) in COLUMNS.items()]
        made.add_row(METHODS[method].label, *cells, style="bold" if method in BY_US else "")
    made.caption = Text("\n".join(skipped))
    out.print(made)
    notes = [f"{each.label}: {each.note}" for each in METHODS.values() if each.note]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    print_lines(out, ["difference, PSNR: from PIL's pixels, in units of 1/255", *notes, versions])
    print_lines(out, [in_one_line(result["machine"])])


def draw(result: dict[str, Any], path: Path) -> None:
    """A bar for each."""
    from matplotlib.figure import Figure

    measured = {method: its for method, its in result["summary"].items() if "failure" not in its}
    figure = Figure(figsize=(9, 1.3 + 0.33 * max(1, len(measured))), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for row, (method, its) in enumerate(measured.items()):
        colour = PALE if method == FLOOR else OURS if method in BY_US else TORCH
        speed = its["images_per_cpu_second"]
        axes.barh(-row, speed["median"], height=0.66, color=colour, zorder=2)
        axes.plot([speed["min"], speed["max"]], [-row, -row], color=INK, linewidth=1.2, zorder=3)
        text = f" {shown(speed)}; {shown(its['ratio'])} x"
        axes.text(speed["max"], -row, text, color=INK, va="center", fontsize=8, zorder=4)
    axes.set_yticks([-row for row in range(len(measured))], [METHODS[method].label for method in measured], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.2)
    unframe(axes)
    axes.set_xlabel("images a CPU second, decoded", color=INK)
    rounds = result["settings"]["rounds"]
    finish(figure, f"JPEG files to rows of 3 x 224 x 224; rounds: {rounds}", result["machine"], path)
