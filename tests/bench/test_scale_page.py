"""docs/scale.md has the figures of the published result, and the costs of the simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")  # for what the bench imports

from bench.scale.costs import COSTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scale.md"


def tables() -> dict[str, list[str]]:
    """The rows of each table, from bench/results/scale.json."""
    found = json.loads((ROOT / "bench" / "results" / "scale.json").read_text(encoding="utf-8"))["summary"]
    return {
        "far": _by_point([each for each in found["far"] if each["cores"] != "1"], "{:g}", 1),
        "requests": _by_point(found["requests"], "{:g}", 1),
        "latency": _by_point(found["latency"], "{:g} ms", 1e3),
        "fleet": _fleet(found["fleet"]),
        "cluster": [
            _row(case, f"{each['measured']['median']:.1f}", f"{each['simulated']:.1f}")
            for case, each in found["cluster"].items()
        ],
        "costs": [_row(cost.what, cost.shown, cost.source) for cost in COSTS.values()],
    }


def _by_point(curves: list[dict[str, Any]], form: str, unit: float) -> list[str]:
    return [
        _row(form.format(points[0]["at"] * unit), *(_rate(point["rate"]) for point in points))
        for points in zip(*(each["points"] for each in curves), strict=True)
    ]


def _fleet(runs: list[dict[str, Any]]) -> list[str]:
    rates = {
        tuple(each[name] for name in ("kind", "gigabits", "trouble", "schedule", "on_a_node")): each for each in runs
    }
    kinds = dict.fromkeys((kind, gigabits) for kind, gigabits, *_ in rates)
    return [
        _row(
            f"{kind}, {gigabits} Gb/s",
            *(
                ", ".join(_rate(rates[kind, gigabits, trouble, by, "1"]["rate"]) for by in ("steal", "round_robin"))
                for trouble in ("none", "slow", "vanish")
            ),
        )
        for kind, gigabits in kinds
    ]


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", ["far", "requests", "latency", "fleet", "cluster", "costs"])
def test_a_table_has_the_published_figures(name: str) -> None:
    rows = "\n".join(tables()[name])
    assert rows in PAGE.read_text(encoding="utf-8"), f"docs/scale.md lacks:\n{rows}"


def test_the_simulation_is_within_15_percent_of_what_was_measured() -> None:
    found = json.loads((ROOT / "bench" / "results" / "scale.json").read_text(encoding="utf-8"))["summary"]["cluster"]
    assert len(found) > 20
    assert {case: each["differs"] for case, each in found.items() if abs(each["differs"]) > 0.15} == {}
