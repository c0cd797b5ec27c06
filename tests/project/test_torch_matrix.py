"""`make test-torch` and `make wheel` go on where pip may not install some torch, and name what they did not try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch_matrix
from python_314 import FORK_SERVER
from torch_matrix import ROOT, Held, Refused, Result

CONFLICT = """\
ERROR: Cannot install torch==2.15.0 because these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested torch==2.15.0
    The user requested (constraint) torch<=2.14.1

ERROR: ResolutionImpossible: for help visit the documentation
"""
MISSING = """\
ERROR: Could not find a version that satisfies the requirement torch==2.15.0 (from versions: 2.13.0)
ERROR: No matching distribution found for torch==2.15.0
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that the matrix makes lies here."""
    for name, folder in (("MADE", ""), ("ENVIRONMENT", "environment"), ("LOGS", "logs"), ("RESULTS", "results.json")):
        monkeypatch.setattr(torch_matrix, name, tmp_path / folder)
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.mark.parametrize(("says", "kind"), [(CONFLICT, Held), (MISSING, Refused)])
def test_what_pip_reports(made: Path, says: str, kind: type) -> None:
    python = made / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(Refused, match=r"torch==2\.15\.0") as caught:
        torch_matrix.pip(Result("2.15.0", "3.11", "", ""), "install", "torch==2.15.0")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("asked", "refuses", "tried", "status"),
    [
        ([], {"2.15.0": Held}, 5, 0),
        ([], {"2.15.0": Refused}, 5, 1),
        ([], {"2.14.1": Held, "2.15.0": Refused}, 4, 1),
        ([], dict.fromkeys(torch_matrix.VERSIONS, Held), 0, 1),
        (["2.13.0", "2.15.0"], {"2.15.0": Held}, 1, 1),  # by name
    ],
)
def test_the_rest_goes_on(
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: list[str],
    refuses: dict[str, Any],
    tried: int,
    status: int,
) -> None:
    def run(result: Result, *_: Any) -> None:
        if result.torch in refuses:
            raise refuses[result.torch]("pip install: (constraint) torch<=2.14.1")
        result.passed = 7

    monkeypatch.setattr(torch_matrix, "run", run)
    monkeypatch.setattr(torch_matrix, "copy_sources", lambda: "sources")
    monkeypatch.setattr(torch_matrix, "find_python", lambda version: "python")
    monkeypatch.setattr(torch_matrix, "python_version", lambda python: "3.11")
    monkeypatch.setattr("sys.argv", ["torch_matrix.py", *asked])
    assert torch_matrix.main() == status
    out = capsys.readouterr().out
    assert out.count("| 7 | 0 |") == tried
    for version, kind in refuses.items():
        assert f"| {version} |  | 3.11 |" in out
        assert (f"{version}: not tried, because pip is held to other versions here" in out) == (kind is Held)


def test_the_files_for_the_fork_server_are_there() -> None:
    assert [name for name in FORK_SERVER if not (ROOT / name).is_file()] == []


def test_the_wheel_is_built_from_all_of_the_core() -> None:
    """Where it is built is a copy of these files, and a build there with a file less fails, or is of another tree."""
    copied = {path for pattern in torch_matrix.CORE_FILES for path in ROOT.glob(pattern)}
    core = {path for path in (ROOT / "cython_ext").rglob("*") if path.is_file()}
    assert core and core <= copied, core - copied


def test_the_suite_has_the_figures_that_bench_reads() -> None:
    copied = {path for pattern in torch_matrix.SUITE_FILES for path in ROOT.glob(pattern)}
    figures = set((ROOT / "bench" / "results").glob("*.json"))
    assert figures and figures <= copied, figures - copied
