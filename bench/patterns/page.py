"""The tables of docs/patterns.md, from bench/results/patterns.json: `python -m bench.patterns.page` renews them."""

from __future__ import annotations

import json
from typing import Any

from bench.core.results import ROOT, in_one_line
from bench.core.spread import shown
from bench.patterns.table import GROUPS

PAGE, RESULT = ROOT / "docs" / "patterns.md", ROOT / "bench" / "results" / "patterns.json"
BEGIN, END = "<!-- figures: python -m bench.patterns.page -->", "<!-- end of the figures -->"
LIMITS = {"wall": 1.15, "cpu": 1.15, "memory": 1.3}
HEADS = ("pattern", "torch's loader", "wall", "CPU", "memory", "growth, torch's", "growth, ours")


def tables(result: dict[str, Any]) -> list[str]:
    """A table for each group of patterns, and one of those above LIMITS, in Markdown."""
    found, lines = result["summary"], []
    groups = {group: [each.name for each in patterns if each.name in found] for group, patterns in GROUPS.items()}
    for title, names in {**groups, "Above 1.15 in time, or 1.3 in memory": above(found)}.items():
        if names:
            rows = [HEADS, ["---"] * len(HEADS), *(_row(name, found[name]) for name in names)]
            lines += [f"### {title}", "", *(f"| {' | '.join(row)} |" for row in rows), ""]
    other = result["machine"].get("against")
    return [*lines, in_one_line(result["machine"]) + (f"; before each arrow: {other}" if other else "")]


def above(found: dict[str, Any]) -> list[str]:
    ratios = {name: each["shmloader"]["ratio"] for name, each in found.items()}
    return [name for name, of in ratios.items() if any(of[k] and of[k]["median"] > LIMITS[k] for k in LIMITS)]


def _row(name: str, found: dict[str, Any]) -> list[str]:
    ours, its = [found[each] for each in ("before", "shmloader") if each in found], found["torch"]
    ratios = (" → ".join(shown(each["ratio"][figure]) for each in ours) for figure in LIMITS)
    growths = (" → ".join(shown(each["growth"], 1e-6) for each in of) for of in ([its], ours))
    absolute = f"{shown(its['wall'])} s, {shown(its['cpu'])} s, {shown(its['memory'], 1e-6)} MB"
    return [name, absolute, *ratios, *(f"{growth} MB" for growth in growths)]


def text(page: str, result: dict[str, Any]) -> str:
    """The page with these tables in it."""
    head, tail = page.partition(BEGIN)[0], page.partition(END)[2]
    return "\n".join([f"{head}{BEGIN}", "", *tables(result), "", f"{END}{tail}"])


def write() -> None:
    PAGE.write_text(text(PAGE.read_text(encoding="utf-8"), json.loads(RESULT.read_text())), encoding="utf-8")


if __name__ == "__main__":
    write()
