"""`python -m bench cache` measures samples with and without the cache, and the memory that ranks share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.commands import parser, run


@pytest.mark.long
def test_it_measures(tmp_path: Path) -> None:
    asked = ["cache", "--rounds", "1", "--seconds", "0.05", "--into", str(tmp_path)]
    assert run(parser().parse_args(asked)) == 0
    figures = json.loads((tmp_path / "cache.json").read_text())["summary"]
    assert all(row["equal"] for row in figures["samples"].values()) and len(figures["samples"]) == 4
    assert figures["shared"]["share"]["median"] < 2
