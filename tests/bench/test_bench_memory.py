"""`python -m bench memory` measures a dataset as lists and frozen, and subtracts one of nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.commands import parser, run
from bench.memory.question import summary


def found(of_round: int, subject: str, memory: float) -> dict[str, Any]:
    others = {"pickled": 100.0, "access": 1e-6, "freeze": 0.1, "epoch": 1.0}
    return {"round": of_round, "start_method": "fork", "subject": subject, "memory": memory, **others}


def test_memory_is_what_a_dataset_of_nothing_does_not_take() -> None:
    measurements = [found(0, "nothing", 50), found(0, "frozen", 160), found(1, "nothing", 60), found(1, "frozen", 180)]
    measurements.append({"round": 2, "start_method": "fork", "subject": "frozen", "failure": "killed"})
    result = summary("fork", "frozen", measurements)
    assert (result["memory"]["min"], result["memory"]["max"], result["beyond"]["median"]) == (110, 120, 1.15)


@pytest.mark.long
def test_it_measures_lists_and_frozen(tmp_path: Path) -> None:
    asked = ["memory", "--rounds", "1", "--megabytes", "16", "--workers", "2", "--start-methods", "fork"]
    assert run(parser().parse_args([*asked, "--into", str(tmp_path)])) == 0
    result = json.loads((tmp_path / "memory.json").read_text())["summary"]["fork"]
    assert result["lists"]["memory"]["median"] > result["frozen"]["memory"]["median"] > 0
