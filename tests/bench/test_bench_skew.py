"""The bench of uneven samples runs, sees other batches than it should get, and knows how long workers were busy."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core.question import Turn
from bench.skew import measure
from bench.skew.measure import SKEWS, Busy


@pytest.mark.long
def test_it_measures_speed_and_idle_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaders = ["torch", "shmloader", "shmloader-chunked"]
    arguments = ["skew", "--rounds", "1", "--cases", "bimodal", "--loaders", *loaders, "--workers", "3"]
    assert main([*arguments, "--milliseconds", "0.2", "--batches", "20", "--into", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "skew.json").read_text())
    found = {found["subject"]: found for found in result["measurements"]}
    assert set(found) == set(loaders)
    for its in found.values():
        assert 0 < its["idle"] < 1 and its["late"] > -1e-3  # a sleep ends late, or on time
        assert its["first"] > 4 * 0.2e-3 / (4 if its["subject"] == "shmloader-chunked" else 1)
        # of 20 batches, 2 for each of 3 workers may have been made before the first moment that counts
        assert its["samples_per_second"] <= its["limit"] * 20 / (20 - 6)
    ratio = found["shmloader"]["samples_per_second"] / found["torch"]["samples_per_second"]
    assert result["summary"]["bimodal"]["loaders"]["shmloader"]["ratio"]["median"] == ratio
    assert (tmp_path / "skew.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "half of the samples 5 times slower" in capsys.readouterr().out


def test_other_batches_than_one_worker_makes_are_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"first": 0.1, "samples_per_second": 1.0, "idle": 0.5, "late": 0.0, "limit": 2.0}

    def measured(turn: Turn) -> dict[str, Any]:
        return {"digest": "b" if turn.arguments.get("loader") == "shmloader" else "a"} | figures

    monkeypatch.setattr(Turn, "measure", measured)
    assert main(["skew", "--rounds", "1", "--loaders", "torch", "shmloader", "--into", str(tmp_path)]) == 1
    assert "round 1, rare, shmloader: not the batches that one worker makes" in capsys.readouterr().out
    loaders = json.loads((tmp_path / "skew.json").read_text())["summary"]["rare"]["loaders"]
    assert loaders["shmloader"]["samples_per_second"] is None and loaders["torch"]["ratio"]["median"] == 1


def test_the_declared_number_of_samples_is_slow() -> None:
    sleeps = SKEWS["rare"].sleeps(1000, 0.5)
    assert sorted(sleeps) == [0.5] * 990 + [10.0] * 10
    assert sleeps == SKEWS["rare"].sleeps(1000, 0.5) != sorted(sleeps)


def test_a_worker_is_busy_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    busy, seen = Busy(2), []
    for worker, at in ((0, 1), (1, 2), (0, 4), (0, 7), (1, 9)):  # the third ends what the first began, and so on
        clock.now = 1000.0 + at
        (busy.end if (worker, at) in ((0, 4), (1, 9)) else busy.begin)(worker)
        seen.append(busy.seconds())
    assert seen == [0, 1, 3 + 2, 3 + 5, 3 + 2 + 7]
