"""docs/scale.md has the figures of the published result, and these are what the simulation gives."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

pytest.importorskip("rich")  # for what the bench imports
pytest.importorskip("simpy")

from bench import scale

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
PUBLISHED = json.loads((ROOT / "bench" / "results" / "scale.json").read_text(encoding="utf-8"))["summary"]


@pytest.mark.parametrize("name", ["far", "requests", "latency", "fleet", "cluster", "costs"])
def test_a_table_has_the_published_figures(name: str) -> None:
    rows = "\n".join(scale.page(PUBLISHED)[name])
    assert rows in PAGE, f"docs/scale.md lacks:\n{rows}"


@pytest.mark.parametrize("rates", [PUBLISHED["noticed after"][late]["rate"] for late in ("0 s", "3 s", "30 s")])
def test_the_text_has_the_rates_of_the_minute_in_which_a_machine_vanishes(rates: float) -> None:
    assert f"{rates:.0f}" in PAGE


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("far", "2"),
        ("cluster", "4 far, three die"),
        pytest.param("latency", "10 ms", marks=pytest.mark.long),
        pytest.param("requests", "8", marks=pytest.mark.long),
    ],
)
def test_the_simulation_still_gives_what_is_published(table: str, row: str) -> None:
    assert scale.row(table, row)["rates"] == pytest.approx(PUBLISHED[table][row])


def test_the_simulation_is_within_15_percent_of_what_was_measured() -> None:
    assert len(scale.MEASURED) > 20
    for case, its in scale.MEASURED.items():
        simulated = statistics.median(PUBLISHED["cluster"][case].values())
        assert simulated == pytest.approx(statistics.median(its["rates"]), rel=0.15), case
