"""`python -m bench cache` measures samples with and without the cache, and the memory that ranks share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cache.question import summary
from bench.commands import parser, run


def found(**figures: Any) -> dict[str, Any]:
    times = {"none": 600.0, "all fits": 200.0, "half fits": 400.0, "first": 900.0}
    return {"what": "uint8", **times, "bytes": 300e3, "equal": 1.0, **figures}


def test_ratios_are_taken_within_a_round() -> None:
    measurements = [found(), found(none=1200.0), {"what": "uint8", "failure": "killed"}]
    measurements += [{"what": "memory", "memory": 11e6, "kept": 10e6}]
    figures = summary(measurements)
    assert figures["samples"]["uint8"]["all fits"] == {"median": 4.5, "min": 3, "max": 6}
    assert figures["samples"]["uint8"]["equal"] and not summary([found(equal=0.0)])["samples"]["uint8"]["equal"]
    assert figures["shared"]["share"]["median"] == 1.1 and figures["bytes"]["median"] == 300e3


@pytest.mark.long
def test_it_measures(tmp_path: Path) -> None:
    asked = ["cache", "--rounds", "1", "--seconds", "0.05", "--into", str(tmp_path)]
    assert run(parser().parse_args(asked)) == 0
    figures = json.loads((tmp_path / "cache.json").read_text())["summary"]
    assert all(row["equal"] for row in figures["samples"].values()) and len(figures["samples"]) == 4
    assert figures["shared"]["share"]["median"] < 2
