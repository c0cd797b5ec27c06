"""Two checkouts in one run: each side's processes import their own shmloader, and ratios are of one round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core import against, child

ROOT = Path(__file__).resolve().parents[2]
IN_A_CHECKOUT = pytest.mark.skipif(
    not (ROOT / "shmloader").is_dir(), reason="the package is installed from a wheel, as `make test-torch` has it"
)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another checkout, whose shmloader is torch's loader."""
    (tmp_path / "other" / "shmloader").mkdir(parents=True)
    (tmp_path / "other" / "shmloader" / "__init__.py").write_text("from torch.utils.data import DataLoader\n")
    return tmp_path / "other"


@IN_A_CHECKOUT
@pytest.mark.long
def test_a_process_imports_the_shmloader_of_its_checkout(other: Path) -> None:
    asked: list[tuple[str, dict[str, str]]] = [
        ("imported", {}),
        ("imported_by_worker", {"start_method": "spawn"}),
        ("imported_by_worker", {"start_method": "forkserver"}),
    ]
    for checkout in (ROOT, other):
        for function, arguments in asked:
            files = child.run(f"bench.core.against:{function}", arguments, 60, checkout=checkout)["files"]
            assert files and all(Path(file).is_relative_to(checkout / "shmloader") for file in files)
    assert files == [str(other / "shmloader" / "__init__.py")]


@pytest.mark.long
def test_both_checkouts_are_measured_in_turns(tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cases", "scalar", "--rounds", "2", "--seconds", "0.1", "--into", str(tmp_path)]
    assert main(["transport", "--against", str(other), *arguments]) == 0
    result = json.loads((tmp_path / "transport-against.json").read_text())
    assert [each["subject"] for each in result["measurements"]] == ["here", "there", "there", "here"]
    ratios = result["summary"]["scalar"]["ratio"]
    assert ratios["batches_per_second"]["min"] > 2 and ratios["trainer_cpu"]["max"] < 0.5, "the other one is torch's"
    assert "one float32 scalar" in capsys.readouterr().out


def test_a_case_is_slower_only_if_all_rounds_agree() -> None:
    def slower(*ratios: float) -> bool:
        figures = dict.fromkeys(against.RATIOS, 1.0)
        measurements: list[dict[str, Any]] = []
        for at, ratio in enumerate(ratios):
            for side, speed in ((against.HERE, ratio), (against.THERE, 1.0)):
                entry = {"round": at, "case": "scalar", "subject": side}
                measurements.append(entry | figures | {"batches_per_second": speed})
        found = against.summary("scalar", measurements)
        assert found["ratio"]["batches_per_second"]["max"] == max(ratios)
        return bool(found["slower"])

    assert slower(0.9, 0.95, 0.99)
    assert not slower(0.9, 0.95, 1.01)
    assert not slower(0.97, 0.98, 0.99)


@IN_A_CHECKOUT
@pytest.mark.long
def test_what_is_no_built_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["transport", "--against", str(tmp_path), "--into", str(tmp_path)])
    assert "no folder `shmloader`" in capsys.readouterr().err
    (tmp_path / "shmloader").mkdir()
    own = str(ROOT / "shmloader")
    for broken, why in (
        ("import shmloader._nothing", r"cannot be imported: ModuleNotFoundError: No module .*; is it built\?"),
        (
            f"__path__.append({own!r}); from shmloader.core.trainer import TrainerSide as DataLoader",
            "is not",
        ),
    ):
        (tmp_path / "shmloader" / "__init__.py").write_text(broken)
        with pytest.raises(SystemExit, match=why):
            main(["transport", "--against", str(tmp_path), "--into", str(tmp_path)])
