"""The bench of decoders runs, on files of its own and on given ones, and says who could not be measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from PIL import Image

from bench.__main__ import main
from bench.core.question import Turn
from bench.images.methods import METHODS


@pytest.mark.long
def test_it_measures_decoders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    for k in range(5):
        noise = Image.effect_noise((300 + k, 200), 50).convert("RGB")
        noise.save(data / "deep" / f"{k}.jpg", progressive=k == 4)  # the last is none of ours, and is left out
    methods = ["pil", "exact", "fast", "rows", "floor"]
    arguments = ["images", "--rounds", "1", "--seconds", "0.05", "--methods", *methods]
    assert main([*arguments, "--data", str(data), "--into", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "images.json").read_text())
    decoded = result["summary"]
    assert list(decoded) == methods
    assert all(each["images_per_cpu_second"]["median"] > 0 for each in decoded.values())
    assert decoded["pil"]["ratio"]["median"] == 1
    for exact in ("pil", "exact"):
        assert decoded[exact]["difference"]["median"] == 0 and decoded[exact]["pooled"] is None
    assert decoded["rows"]["difference"] == decoded["fast"]["difference"]
    assert 0 < decoded["fast"]["difference"]["median"] < 2 and decoded["fast"]["worst"]["median"] > 30
    assert decoded["floor"]["difference"] is None
    assert (tmp_path / "images.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert str(tmp_path) not in (tmp_path / "images.json").read_text()
    assert "5 given" in capsys.readouterr().out


@pytest.mark.long
def test_who_is_missing_is_skipped_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(turn: Turn) -> dict[str, Any]:
        figures = {"images_per_cpu_second": 2.0, "ratio": 1.0}
        return {"failure": turn.failure or "crashed"} if turn.labels["subject"] in ("dali", "kornia") else figures

    monkeypatch.setattr(Turn, "measure", measured)
    monkeypatch.setattr("bench.core.loaders.importlib.util.find_spec", lambda name: None if name == "nvidia" else name)
    assert main(["images", "--rounds", "1", "--into", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "skipped: DALI, CPU, not installed: nvidia.dali" in out and "skipped: kornia-rs, crashed" in out
    assert "made by the bench" in " ".join(out.split())
    result = json.loads((tmp_path / "images.json").read_text())
    assert set(result["summary"]) == set(METHODS)


@pytest.mark.long
def test_a_failure_of_ours_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turn, "measure", lambda turn: {"failure": "crashed"})
    assert main(["images", "--rounds", "1", "--methods", "fast", "--into", str(tmp_path)]) == 1
