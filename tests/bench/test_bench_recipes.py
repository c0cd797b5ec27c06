"""The bench of recipes: what its rounds come to, and what it does without torchvision or timm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core.question import Turn
from bench.recipes.question import summary
from bench.recipes.recipes import RECIPES


def test_ratios_are_taken_within_a_round() -> None:
    sample = {"part": "samples", "recipe": "crop"}
    loaded = {"part": "load", "recipe": "crop", "round": 0}
    found = summary(
        [
            {**sample, "round": 0, "v1": 4000.0, "fused": 1000.0, "floor": 500.0},
            {**sample, "round": 1, "v1": 8000.0, "fused": 4000.0, "floor": 1000.0},
            {**loaded, "way": "v1", "images_per_second": 100.0},
            {**loaded, "way": "fused", "images_per_second": 300.0},
            {"part": "samples", "recipe": "timm", "round": 0, "failure": "no timm"},
        ]
    )
    assert found["samples"]["crop"]["fused"]["ratio"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert found["samples"]["crop"]["floor"]["figure"]["median"] == 750
    assert found["load"]["crop"]["fused"]["ratio"]["median"] == 3
    assert found["samples"]["timm"] == {"failure": "no timm"}
    assert "v2" not in found["samples"]["crop"]


def test_a_recipe_whose_library_is_missing_is_named_and_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def why_not(recipe: Any) -> str:
        return "timm is not installed" if "timm" in recipe.needs else ""

    def measured(turn: Turn) -> dict[str, Any]:
        figures = dict.fromkeys(("v1", "v2", "fused", "fast", "floor"), 2.0)
        return {"failure": turn.failure} if turn.failure else {**figures, "images_per_second": 3.0}

    monkeypatch.setattr("bench.recipes.recipes.Recipe.why_not", why_not)
    monkeypatch.setattr(Turn, "measure", measured)
    assert main(["recipes", "--rounds", "2", "--into", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "timm is not installed" in said and "SimCLR" in said
    found = json.loads((tmp_path / "recipes.json").read_text())["summary"]
    assert set(found["samples"]) == set(found["load"]) == set(RECIPES)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_it_measures_samples_and_loaders(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    options = ["--rounds", "1", "--seconds", "0.05", "--batch-size", "4", "--workers", "1", "--recipes", "trivial"]
    assert main(["recipes", *options, "--into", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "recipes.json").read_text())["summary"]
    assert set(found["samples"]["trivial"]) == {"v1", "v2", "fused", "fast", "floor"}
    assert found["load"]["trivial"]["fused"]["figure"]["median"] > 0
