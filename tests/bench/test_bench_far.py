"""`python -m bench far` measures far workers over loopback, and beside Ray Data where that is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core import jpegs
from bench.core.question import Turn
from bench.far import beside
from bench.far.beside_ray import OURS, RAY_DATA
from bench.far.pictures import BYTES, Pictures


def measured(loader: str, at: int = 0, **figures: float) -> dict[str, Any]:
    quick = {"images_per_second": 500.0, "cpu": 0.004, "next_p99": 0.2, "store": 0.0, "whole": 1e9}
    slow = {"slow_next_p99": 0.01, "slow_store": 0.0, "slow_whole": 1e9}
    others = {"first": 5.0, "ring": 0.0, "spilled": 0.0, "ray": "2.60.0"}
    return {"part": "ray", "round": at, "loader": loader, **quick, **slow, **others, **figures}


def test_our_ring_counts_as_their_object_stores_do_and_ratios_are_taken_within_a_round() -> None:
    found = beside.summary(
        [
            measured(OURS, 0, images_per_second=600, ring=200e6, store=1e6),
            measured(RAY_DATA, 0, images_per_second=300, store=2010e6, slow_store=4020e6),
            measured(OURS, 1, images_per_second=600, ring=200e6, store=1e6),
            measured(RAY_DATA, 1, images_per_second=600, store=402e6, slow_store=402e6),
            measured(OURS, 2, images_per_second=900, ring=200e6),
            {"part": "ray", "round": 2, "loader": RAY_DATA, "failure": "killed"},
        ]
    )
    assert found[OURS]["held"] == {"median": 201e6, "min": 200e6, "max": 201e6}
    ratios = found[OURS]["of_ray_data"]
    assert ratios["rate"] == {"median": 1.5, "min": 1, "max": 2}
    assert ratios["cpu"]["median"] == 1
    assert ratios["memory"] == {"median": 0.3, "min": 0.1, "max": 0.5}
    assert ratios["slow_memory"]["min"] == 200e6 / 4020e6
    assert ratios["whole_memory"] == {"median": 1, "min": 1, "max": 1}
    assert found[RAY_DATA]["of_ray_data"]["rate"]["median"] == 1 and set(found) == {OURS, RAY_DATA}


def test_it_shows_all_loaders_and_their_ratio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def found(turn: Turn) -> dict[str, Any]:
        loader = turn.labels["loader"]
        asked.append(loader)
        assert turn.python == "a Python with Ray" and turn.arguments["store"] == 3 << 30
        if loader == RAY_DATA and len(asked) > 2:
            return {"failure": "killed after 7 s"}
        return measured(loader, images_per_second=800.0 if loader == OURS else 400.0)

    monkeypatch.setattr(Turn, "measure", found)
    monkeypatch.setattr(beside, "python", lambda: "a Python with Ray")
    monkeypatch.setenv("COLUMNS", "250")
    arguments = ["far", "--parts", "ray", "--rounds", "2", "--loaders", OURS, RAY_DATA, "--store", "3"]
    assert main([*arguments, "--into", str(tmp_path)]) == 1
    assert asked == [OURS, RAY_DATA, RAY_DATA, OURS]  # each begins a round
    out = capsys.readouterr().out
    assert "shmloader / Ray Data" in out and "2.00 [2.00..2.00]" in out
    assert "round 2, ray, Ray Data: killed after 7 s" in out and "96 made by the bench" in out


def test_without_ray_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "NEEDS", ("no_such_module",))
    monkeypatch.setattr(beside, "ENVIRONMENT", tmp_path / "python")
    assert main(["far", "--parts", "ray", "--into", str(tmp_path)]) == 0
    assert "make test-ray" in capsys.readouterr().out and not list(tmp_path.iterdir())
    (tmp_path / "python").touch()
    assert beside.python() == str(tmp_path / "python")
    monkeypatch.setattr(beside, "NEEDS", ("torch",))
    assert beside.python() == sys.executable


def test_a_picture_depends_on_its_number_alone(tmp_path: Path) -> None:
    jpegs.make(tmp_path, 2)
    pictures = Pictures(str(tmp_path), 100)
    first = pictures[6]
    assert first.shape == (3, 224, 224) and first.dtype == torch.float32 and first.nbytes == BYTES
    assert 0 <= first.min() < 0.3 and 0.7 < first.max() <= 1
    assert torch.equal(Pictures(str(tmp_path), 7)[6], first)
    assert not torch.equal(pictures[8], first)  # of the same file
