"""bench network: ratios are taken within a round, and it says what it lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench import commands
from bench.__main__ import main
from bench.core.results import console
from bench.core.results import machine as bench_machine
from bench.network.measure import ALONE
from bench.network.question import summary


def test_a_loader_is_compared_with_the_net_alone_in_the_same_round(capsys: pytest.CaptureFixture[str]) -> None:
    measurements: list[dict[str, Any]] = []
    for at, rate in enumerate((1000.0, 2000.0, 4000.0)):
        figures = {"waiting": 0.5, "trainer_cpu": 0.01, "first": 1.0}
        measurements.append({"round": at, "subject": ALONE, "images_per_second": rate, **figures})
        measurements.append({"round": at, "subject": "torch, workers: 4", "images_per_second": 500.0, **figures})
    measurements.append({"round": 3, "subject": "torch, workers: 4", "failure": "killed"})
    found = summary(measurements)
    assert found["torch, workers: 4"]["of_alone"] == {"median": 0.25, "min": 0.125, "max": 0.5}
    assert found[ALONE]["of_alone"]["median"] == 1
    asked = commands.QUESTIONS["network"](commands.parser().parse_args(["network"]))
    settings = {"network": "resnet50", "batch_size": 256, "files": "3 files"}
    machine = {"gpu": "a GPU", **bench_machine()}
    asked.show(console(), {"summary": found, "settings": settings, "machine": machine, "measurements": measurements})
    out = capsys.readouterr().out
    assert "resnet50, batches of 256, on a GPU" in out and "torch, workers: 4" in out and "killed" in out


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed")
def test_without_torchvision_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["network", "--into", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "torchvision is not installed" in out and not list(tmp_path.iterdir())
