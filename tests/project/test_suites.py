"""The command that runs other projects' suites fails if a test passes on torch's loader only, or if none rides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
BEGINNING = "import torch.utils.data as data\ndef rows(**options): return data.DataLoader(range(4), **options)\n"
RIDES = "def test_rides(): assert len(list(rows(num_workers=1))) == 4\n"


def run(folder: Path, tests: str, *options: str) -> tuple[int, list[str]]:
    """The status, and from the table: passed, failed with torch's loader and with ours; broken, loaders, rode."""
    (folder / "test_theirs.py").write_text(BEGINNING + tests)
    command = [sys.executable, "-m", "tests.suites", "--from", folder, "--name", "made", "--python", sys.executable]
    result = subprocess.run([*command, *options, "--", "test_theirs.py"], cwd=CHECKOUT, capture_output=True, text=True)
    words = result.stdout.splitlines()[-1].split()
    return result.returncode, words[-10:-8] + words[-7:-5] + words[-4:-1]


@pytest.mark.long
def test_what_counts_as_a_failure(tmp_path: Path) -> None:
    both = "def test_fails(): assert False\n"
    broken = "def test_is_torchs(): assert type(rows()) is data.DataLoader\n"
    pipe = "def test_pipe(): list(data.DataLoader(data.datapipes.iter.IterableWrapper([1]), num_workers=1))\n"
    without = "def test_without_workers(): assert len(list(rows())) == 4\n"
    assert run(tmp_path, RIDES + both) == (0, ["1", "1", "1", "1", "0", "1", "1"])
    assert run(tmp_path, RIDES + broken) == (1, ["2", "0", "1", "1", "1", "1", "1"])
    assert run(tmp_path, pipe) == (1, ["1", "0", "1", "0", "0", "1", "0"])
    assert run(tmp_path, without, "--workers", "2") == (0, ["1", "0", "1", "0", "0", "1", "1"])
