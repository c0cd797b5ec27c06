"""The figures of decoders and of loaders in print, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.core.loaders import LOADERS, OURS
from bench.core.picture import INK, PALE, TORCH, finish, unframe
from bench.core.picture import OURS as TEAL
from bench.core.results import in_one_line, print_lines
from bench.core.spread import shown
from bench.images.methods import EXACT, FAST, FLOOR, METHODS, ROWS

DECODE, LOAD = "decode", "load"
# A heading, its figure, by what to multiply it, and whether with its spread.
COLUMNS: dict[str, tuple[tuple[str, str, float, bool], ...]] = {
    DECODE: (
        ("images/CPU s", "images_per_cpu_second", 1, True),
        ("/ PIL", "ratio", 1, True),
        ("mean\ndifference", "difference", 1, False),
        ("PSNR dB\npooled", "pooled", 1, False),
        ("worst\nimage", "worst", 1, False),
    ),
    LOAD: (
        ("images/s", "images_per_second", 1, True),
        ("/ torch, PIL", "ratio", 1, True),
        ("trainer CPU\nms/batch", "trainer_cpu", 1e3, False),
        ("images/CPU s\nall", "images_per_cpu_second", 1, False),
    ),
}


def label(subject: str) -> str:
    """What a subject is called."""
    if subject in METHODS:
        return METHODS[subject].label
    loader, _, method = subject.partition("-")
    return f"{LOADERS[loader].label} + {METHODS[method].label}"


def print_tables(out: Console, result: dict[str, Any]) -> None:
    settings = result["settings"]
    rounds = f"rounds: {settings['rounds']}, medians \\[min..max]; took {settings['took']} s"
    titles = {
        DECODE: f"files in memory, one process on one core; {settings['files']}",
        LOAD: f"files on disk, workers: {settings['workers']}, batches of {settings['batch_size']}",
    }
    for part, each in result["summary"].items():
        table = Table(title=f"images; {titles[part]}; {rounds}", title_justify="left", caption_justify="left")
        table.add_column("", no_wrap=True)
        for heading, *_ in COLUMNS[part]:
            table.add_column(heading, justify="right", no_wrap=True)
        skipped = []
        for subject, its in each.items():
            if "failure" in its:
                skipped.append(f"skipped: {label(subject)}, {its['failure']}")
                continue
            cells = [shown(its[figure], by, wide) for _, figure, by, wide in COLUMNS[part]]
            table.add_row(label(subject), *cells, style="bold" if _is_ours(subject) else "")
        table.caption = Text("\n".join(skipped))
        out.print(table)
    notes = [f"{METHODS[name].label}: {METHODS[name].note}" for name in METHODS if METHODS[name].note]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    print_lines(out, ["difference, PSNR: from PIL's pixels, in units of 1/255", *notes, versions])
    print_lines(out, [in_one_line(result["machine"])])


def draw(result: dict[str, Any], path: Path) -> None:
    """A bar for each; a panel for each part."""
    from matplotlib.figure import Figure

    parts = {
        part: {s: its for s, its in each.items() if "failure" not in its} for part, each in result["summary"].items()
    }
    heights = [max(1, len(each)) for each in parts.values()]
    figure = Figure(figsize=(9, 1.3 + 0.33 * sum(heights)), dpi=150, layout="constrained")
    panels = figure.subplots(len(parts), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (part, each) in zip(panels, parts.items(), strict=True):
        speed = COLUMNS[part][0][1]
        for row, (subject, its) in enumerate(each.items()):
            colour = PALE if subject == FLOOR else TEAL if _is_ours(subject) else TORCH
            axes.barh(-row, its[speed]["median"], height=0.66, color=colour, zorder=2)
            axes.plot([its[speed]["min"], its[speed]["max"]], [-row, -row], color=INK, linewidth=1.2, zorder=3)
            text = f" {shown(its[speed])}; {shown(its['ratio'])} x" if its["ratio"] else f" {shown(its[speed])}"
            axes.text(its[speed]["max"], -row, text, color=INK, va="center", fontsize=8, zorder=4)
        axes.set_yticks([-row for row in range(len(each))], [label(subject) for subject in each], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.2)
        unframe(axes)
        axes.set_xlabel("images a CPU second, decoded" if part == DECODE else "images a second, loaded", color=INK)
    settings = result["settings"]
    finish(figure, f"JPEG files to rows of 3 x 224 x 224; rounds: {settings['rounds']}", result["machine"], path)


def _is_ours(subject: str) -> bool:
    return subject in (EXACT, FAST, ROWS) or subject.startswith(f"{OURS}-")
