"""The bench of recipes: what its rounds come to, its picture, and what it does without the libraries it compares."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core.question import Turn, add_shared_options
from bench.recipes.question import Recipes, summary
from bench.recipes.recipes import RECIPES


def _parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_shared_options(parser, 3)
    Recipes.add_options(parser)
    return parser.parse_args(options)


def test_ratios_are_taken_within_a_round() -> None:
    sample = {"part": "samples", "recipe": "crop"}
    loaded = {"part": "load", "recipe": "crop", "round": 0}
    found = summary(
        [
            {**sample, "round": 0, "v1": 4000.0, "fused": 1000.0, "floor": 500.0},
            {**sample, "round": 1, "v1": 8000.0, "fused": 4000.0, "floor": 1000.0},
            {**loaded, "way": "v1", "images_per_second": 100.0, "cpu": 900.0},
            {**loaded, "way": "fused", "images_per_second": 300.0, "cpu": 450.0},
            {"part": "samples", "recipe": "timm", "round": 0, "failure": "no timm"},
            {**sample, "ways": "dali", "round": 0, "dali": 2000.0},
            {"part": "parts", "recipe": "crop", "round": 0, "RandomResizedCrop": 70.0},
            {"part": "parts", "recipe": "crop", "round": 1, "RandomResizedCrop": 90.0},
        ]
    )
    assert found["samples"]["crop"]["fused"]["ratio"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert found["samples"]["crop"]["floor"]["figure"]["median"] == 750
    assert found["load"]["crop"]["fused"]["ratio"]["median"] == 3
    assert found["load_cpu"]["crop"]["fused"]["ratio"]["median"] == 2
    assert found["samples"]["timm"] == {"failure": "no timm"}
    assert "v2" not in found["samples"]["crop"]
    assert found["samples"]["crop"]["dali"]["ratio"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert found["parts"]["crop"] == {"RandomResizedCrop": {"median": 80.0, "min": 70.0, "max": 90.0}}


def test_dali_is_timed_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.recipes.ways.Way.has", lambda way, recipe: way.only is None or recipe in way.only)
    asked = Recipes(_parsed("--recipes", "crop", "simclr", "--parts", "samples"))
    by = [turn.arguments["by"] for turn in asked.turns(0)]
    assert [sorted(ways) for ways in by] == [
        ["albumentations", "fast", "floor", "fused", "v1", "v2"],
        ["dali"],
        ["albumentations", "fast", "floor", "fused", "v1", "v2"],
    ]
    assert by[0] != asked.turns(1)[0].arguments["by"]  # another way goes first
    few = Recipes(_parsed("--recipes", "crop", "--ways", "v1", "fused")).turns(0)
    assert [turn.arguments.get("way") or turn.arguments.get("by") for turn in few] == [
        ["v1", "fused"],
        None,
        "v1",
        "fused",
    ]


def test_a_recipe_whose_library_is_missing_is_named_and_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def why_not(recipe: Any) -> str:
        return "timm is not installed" if "timm" in recipe.needs else ""

    def measured(turn: Turn) -> dict[str, Any]:
        figures = dict.fromkeys(("v1", "v2", "fused", "fast", "floor"), 2.0)
        return {"failure": turn.failure} if turn.failure else {**figures, "images_per_second": 3.0, "cpu": 2.0}

    monkeypatch.setattr("bench.recipes.recipes.Recipe.why_not", why_not)
    monkeypatch.setattr(Turn, "measure", measured)
    assert main(["recipes", "--rounds", "2", "--into", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "timm is not installed" in output and "SimCLR" in output
    found = json.loads((tmp_path / "recipes.json").read_text())["summary"]
    assert set(found["samples"]) == set(found["load"]) == set(found["parts"]) == set(RECIPES)
    assert (tmp_path / "recipes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_it_measures_samples_and_loaders(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    options = ["--rounds", "1", "--seconds", "0.05", "--batch-size", "4", "--workers", "1", "--recipes", "trivial"]
    assert main(["recipes", *options, "--into", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "recipes.json").read_text())["summary"]
    assert set(found["samples"]["trivial"]) >= {"v1", "v2", "fused", "fast", "floor"}
    assert "TrivialAugmentWide" in " ".join(found["parts"]["trivial"])
    assert found["load"]["trivial"]["fused"]["figure"]["median"] > 0
