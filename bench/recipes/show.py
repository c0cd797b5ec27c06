"""The figures of recipes in print, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.core.picture import INK, OURS, PALE, TORCH, finish, unframe
from bench.core.results import in_one_line, print_lines
from bench.core.spread import shown
from bench.recipes.recipes import RECIPES
from bench.recipes.ways import ALBUMENTATIONS, DALI, FAST, FLOOR, FUSED, V1, V2, WAYS

__all__ = ["LOAD", "LOAD_CPU", "PARTS", "SAMPLES", "draw", "print_tables"]

SAMPLES, LOAD, LOAD_CPU, PARTS = "samples", "load", "load_cpu", "parts"
TITLES = {
    SAMPLES: "microseconds of CPU a sample",
    LOAD: "images a second, with workers",
    LOAD_CPU: "microseconds of CPU an image, with workers",
}
COLOURS = {
    V1: TORCH,
    V2: "#e08e79",
    ALBUMENTATIONS: "#edae49",
    DALI: "#8d96a3",
    FUSED: OURS,
    FAST: "#66a182",
    FLOOR: PALE,
}
SHOWN_PARTS = 5  # of a recipe, in its line


def print_tables(out: Console, result: dict[str, Any]) -> None:
    """A table of samples and one of loaders, and a line a recipe for its parts."""
    for part, title in TITLES.items():
        recipes = result["summary"][part]
        measured = {recipe: by for recipe, by in recipes.items() if V1 in by}
        if measured:
            out.print(_table(title, measured))
        missing = [f"{RECIPES[recipe].label}: {by['failure']}" for recipe, by in recipes.items() if "failure" in by]
        print_lines(out, missing)
    lines = [
        f"{RECIPES[recipe].label}: {_in_words(by)}"
        for recipe, by in result["summary"][PARTS].items()
        if "failure" not in by
    ]
    print_lines(out, ["microseconds of CPU of a fused sample's parts:", *lines] if lines else [])
    print_lines(out, [in_one_line(result["machine"])])


def _table(title: str, recipes: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("recipe", no_wrap=True)
    ways = [way for way in WAYS if any(way in by for by in recipes.values())]
    for way in ways:
        table.add_column(WAYS[way].label, justify="right")
    for recipe, by in recipes.items():
        table.add_row(RECIPES[recipe].label, *(_cell(by.get(way)) for way in ways))
    return table


def _cell(figures: Any) -> str:
    return "-" if figures is None else f"{shown(figures['figure'])}\n{shown(figures['ratio'], 1, True)} x"


def _in_words(parts: dict[str, Any]) -> str:
    dearest = sorted(parts.items(), key=lambda part: -part[1]["median"])
    words = [f"{name} {shown(cost)}" for name, cost in dearest[:SHOWN_PARTS]]
    rest = sum(cost["median"] for _, cost in dearest[SHOWN_PARTS:])
    return ", ".join([*words, f"the rest {rest:.0f}"] if rest else words)


def draw(result: dict[str, Any], path: Path) -> None:
    """How many times as quick as torchvision (or timm) each way is: a panel for samples, and two for loaders."""
    from matplotlib.figure import Figure

    measured = {part: {recipe: by for recipe, by in result["summary"][part].items() if V1 in by} for part in TITLES}
    measured = {part: recipes for part, recipes in measured.items() if recipes}
    if not measured:
        return
    most = max(len(recipes) for recipes in measured.values())
    figure = Figure(figsize=(11, 1.6 + 0.75 * most), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(measured), squeeze=False, sharey=True)[0]
    for axes, (part, recipes) in zip(panels, measured.items(), strict=True):
        ways = [way for way in WAYS if way != FLOOR and any(way in by for by in recipes.values())]
        height = 0.8 / len(ways)
        for row, by in enumerate(recipes.values()):
            for at, way in enumerate(ways):
                if way in by and by[way]["ratio"]:
                    ratio, y = by[way]["ratio"], row + (at - (len(ways) - 1) / 2) * height
                    first = WAYS[way].label if row == 0 else None
                    axes.barh(y, ratio["median"], height=0.9 * height, color=COLOURS[way], zorder=2, label=first)
                    axes.plot([ratio["min"], ratio["max"]], [y, y], color=INK, linewidth=0.8, zorder=3)
                    if way in (FUSED, FAST):
                        axes.text(ratio["max"], y, f" {shown(ratio)} x", color=INK, va="center", fontsize=7, zorder=4)
        axes.set_yticks(range(len(recipes)), [RECIPES[recipe].label for recipe in recipes], fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.15)
        axes.set_title(f"by {TITLES[part].removeprefix('microseconds of ')}", fontsize=9, color=INK, loc="left")
        unframe(axes)
    panels[0].invert_yaxis()
    bars = {label: bar for axes in panels for bar, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(bars.values(), bars.keys(), loc="outside right center", fontsize=8)
    title = "Whole recipes, JPEG files to samples: times as quick as torchvision v1 (or timm)"
    finish(figure, f"{title}; rounds: {result['settings']['rounds']}", result["machine"], path)
