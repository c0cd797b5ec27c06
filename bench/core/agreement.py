"""Whether two runs of a bench agree: each figure of speed, within the spreads that the two state of it.

A spread is from the least round to the largest, and of few rounds: even if nothing has changed, those of n and m rounds
lie apart with a probability of 2 / C(n + m, n), one in ten for three and three.  So some of many figures do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.core.results import console, print_lines
from bench.core.spread import Spread, shown

SPEEDS = ("batches_per_second", "seconds", "ours", "ratio")  # neither tails nor peaks


def run(one: Path, other: Path) -> int:
    """Compare two files that a bench wrote, and print what does not agree; returns 1 if that is more than chance."""
    out = console()
    first, second = (json.loads(path.read_text(encoding="utf-8")) for path in (one, other))
    theirs = dict(figures(second["summary"]))
    both = [(name, each, theirs[name]) for name, each in figures(first["summary"]) if name in theirs]
    apart = [(name, each, to) for name, each, to in both if not agree(each, to)]
    table = Table(title="figures whose spreads do not meet", title_justify="left")
    for heading in ("figure", "one run", "the other"):
        table.add_column(heading, no_wrap=True)
    for name, each, to in apart:
        table.add_row(name, shown(each, all_of_it=True), shown(to, all_of_it=True))
    if apart:
        out.print(table)
    expected = math.ceil(len(both) * by_chance(first["settings"]["rounds"], second["settings"]["rounds"]))
    print_lines(
        out,
        [
            f"{len(both) - len(apart)} of {len(both)} figures of {first['bench']} agree",
            f"by chance alone about {expected} of them would not",
        ],
    )
    return 1 if len(apart) > expected or not both else 0


def by_chance(rounds: int, others: int) -> float:
    """The probability that two spreads of this many rounds each do not meet, if only noise makes them differ."""
    return 2 / math.comb(rounds + others, rounds)


def agree(one: Spread, other: Spread) -> bool:
    """Whether the two ranges, from the least round to the largest, overlap."""
    return one["min"] <= other["max"] and other["min"] <= one["max"]


def figures(value: Any, name: str = "") -> Iterator[tuple[str, Spread]]:
    """All figures of speed in a summary, by their path in it."""
    if not isinstance(value, dict):
        return
    for key, part in value.items():
        here = f"{name}, {key}" if name else key
        if key in SPEEDS and isinstance(part, dict) and set(part) == {"median", "min", "max"}:
            yield here, part
        else:
            yield from figures(part, here)
