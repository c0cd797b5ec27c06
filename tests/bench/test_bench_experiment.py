"""The experiment runs, and its figures are what its documentation says."""

from __future__ import annotations

import contextlib
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core import loaders
from bench.core.question import Turn
from bench.experiment import measure
from bench.experiment.profiles import FLOWS, PROFILES
from bench.experiment.question import summary

pytestmark = pytest.mark.timeout(300)  # many processes, one after the other, each of which imports torch
SETTINGS = {"scale": 0.5, "iterations": 25, "ignored": 5, "rounds": 2}


@pytest.mark.long
def test_it_measures_beside_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "DI_ENGINE", tmp_path / "no" / "python")
    arguments = ["experiment", "--cases", "Small", "--flows", "fast", "--scale", "0.05", "--iterations", "8"]
    names = ["torch", "shmloader-chunked", "shmloader-async"]
    assert main([*arguments, "--loaders", *names, "di-engine", "--into", str(tmp_path)]) == 0
    written = (tmp_path / "experiment.json").read_text()
    assert not re.search(r'"[^"]*(?<![\w.])/\w+/[^"]*"', written), "an absolute path in the JSON"
    result = json.loads(written)
    assert [each["subject"] for each in result["measurements"]] == names
    cell = result["summary"]["Small"]["fast"]
    assert cell["limit"] == pytest.approx(3 * 128 * 0.0058 / 8 * 0.05)
    assert cell["limit_with_overshoot"] == pytest.approx(cell["limit"] + 3 * 128 / 8 * result["overshoot"]["Small"])
    for each in result["measurements"]:
        assert 0 < each["blocked"] < each["total"] and each["counted"] == 3
        together = 1 if each["subject"] == "torch" else 4  # workers that make a batch of four chunks
        assert each["first"] >= cell["data"] / together
        assert cell["loaders"][each["subject"]]["distance"]["median"] == each["total"] / cell["limit"] - 1
    assert (tmp_path / "experiment.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "skipped: Small, di-engine: DI-engine is not installed: make di-engine" in capsys.readouterr().out


@pytest.mark.parametrize("flow", FLOWS)
def test_the_limit_is_the_slower_of_loading_and_inference(flow: str) -> None:
    what = PROFILES["Big64"]
    inference = {"slow": 1.05, "middle": 1.05 / 2, "fast": 1.05 / 3}[flow] * 4 * 2.35 / 8
    assert what.inference_seconds(flow, 1) == pytest.approx(inference)
    assert what.limit(flow, 0.5) == pytest.approx(max(4 * 2.35 / 8, inference) / 2)
    assert what.limit(flow, 1, overshoot=1) == pytest.approx(4 * 3.35 / 8)


def test_a_loader_measured_over_fewer_steps_is_shown_for_as_many() -> None:
    def measured(at: int, loader: str, counted: int, total: float) -> dict[str, Any]:
        figures = {"counted": counted, "total": total, "blocked": total / 4, "first": 1.0, "touch": 0.1, "late": at}
        return {"round": at, "case": "Middle", "flow": "slow", "subject": loader} | figures

    failure = {"round": 1, "case": "Middle", "flow": "slow", "subject": "torch", "failure": "killed after 1 s"}
    measurements = [
        measured(0, "torch-0", 5, 8.0),
        measured(1, "torch-0", 5, 6.0),
        measured(0, "torch", 20, 7.0),
        failure,
    ]
    cell = summary(["Middle"], ["slow"], ["torch-0", "torch"], SETTINGS, {"Middle": 0.0}, measurements)["Middle"][
        "slow"
    ]
    serial = cell["loaders"]["torch-0"]
    assert serial["total"] == {"median": 28, "min": 24, "max": 32}
    assert serial["distance"]["max"] == 32 / cell["limit"] - 1
    assert serial["blocked"] == {"median": 0.25, "min": 0.25, "max": 0.25} and serial["late"] == 1
    assert cell["loaders"]["torch"]["total"] == {"median": 7, "min": 7, "max": 7}


def test_a_sleep_that_is_too_long_does_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(overshoot=0.001)
    batch = torch.zeros(128, 4608, dtype=torch.uint8)

    @contextlib.contextmanager
    def opened(*_: Any) -> Any:
        yield iter(lambda: (clock.pass_by(0.01), batch)[1], None)

    monkeypatch.setattr(measure, "opened", opened)
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "sharpen", lambda: None)
    monkeypatch.setattr(measure, "touch_pages", lambda *_: clock.pass_by(0.02))
    monkeypatch.setattr(measure.multiprocessing, "set_start_method", lambda *_, **__: None)
    found = measure.cell("torch", "Small", "slow", scale=1, iterations=45, ignored=5)
    inference = PROFILES["Small"].inference_seconds("slow", 1)
    assert found["total"] == pytest.approx(40 * (0.01 + inference), abs=0.0011)
    assert found["blocked"] == pytest.approx(40 * 0.01)
    assert found["touch"] == pytest.approx(0.02) and found["late"] == 0 and found["first"] == pytest.approx(0.01)


def test_what_would_not_fit_into_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_bytes", lambda: 2 << 30)
    assert measure.why_not("torch", PROFILES["Big64"]) == "5.2 GiB may be needed at once, and 2.0 GiB are free"
    assert measure.why_not("torch", PROFILES["Big16"]) == ""


def test_a_cell_that_failed_is_named_and_not_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def measured(turn: Turn) -> dict[str, Any]:
        if "overshoot" in turn.function:
            return {"overshoot": 0.0}
        asked.append((turn.arguments["flow"], turn.arguments["loader"]))
        if asked[-1] == ("fast", "torch"):
            return {"failure": "killed after 9 s"}
        return dict.fromkeys(("total", "counted", "blocked", "first", "touch", "late"), 1)

    monkeypatch.setattr(Turn, "measure", measured)
    arguments = ["experiment", "--cases", "Small", "--flows", "fast", "slow", "--loaders", "torch", "shmloader"]
    assert main([*arguments, "--rounds", "2", "--into", str(tmp_path)]) == 1
    assert asked == [
        *(("fast", "torch"), ("fast", "shmloader"), ("slow", "torch"), ("slow", "shmloader")),
        *(("fast", "shmloader"), ("slow", "shmloader"), ("slow", "torch")),  # the other one first
    ]
    assert "round 1, Small, fast, torch: killed after 9 s" in capsys.readouterr().out
    assert (tmp_path / "experiment.png").exists()


class _Clock(types.SimpleNamespace):
    """A clock that only the test moves, and sleeps that are each too long."""

    def __init__(self, overshoot: float) -> None:
        super().__init__(now=100.0, overshoot=overshoot)

    def perf_counter(self) -> float:
        return float(self.now)

    def sleep(self, seconds: float) -> None:
        self.pass_by(seconds + self.overshoot)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
