"""Several rounds in one figure: the median and the range."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

Spread = dict[str, float]  # median, min, max


def spread(values: Iterable[float]) -> Spread | None:
    """The median of some rounds and their smallest and largest; None where there is none."""
    known = list(values)
    if not known:
        return None
    return {"median": statistics.median(known), "min": min(known), "max": max(known)}


def shown(figure: Spread | None, scale: float = 1, all_of_it: bool = False) -> str:
    """A figure of three digits for a table, optionally with its range; a dash if there is none."""
    if figure is None:
        return "-"
    median, least, most = (_digits(figure[key] * scale) for key in ("median", "min", "max"))
    return f"{median} [{least}..{most}]" if all_of_it else median


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"
