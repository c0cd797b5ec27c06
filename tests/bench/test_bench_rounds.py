"""A bench says how long it will take, keeps each round that is done, and goes on after an interruption."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core import results
from bench.core.question import Turn
from bench.transport.question import FIGURES

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["transport", "--cases", "scalar", "--seconds", "0.01", "--start-method", "fork"]


class Measured:
    """Stands in for the processes: each figure is the number of the measurement, from 1; one may be interrupted."""

    def __init__(self) -> None:
        self.count = 0
        self.interrupted = 0  # the number of the measurement in which Ctrl-C comes

    def __call__(self, turn: Turn) -> dict[str, Any]:
        self.count += 1
        if self.count == self.interrupted:
            raise KeyboardInterrupt
        return dict.fromkeys(FIGURES, float(self.count))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    made = Measured()
    monkeypatch.setattr(Turn, "measure", lambda turn: made(turn))
    return made


def _read(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "transport.json").read_text())
    return read


def test_an_interrupted_run_keeps_its_rounds_and_resume_goes_on(
    tmp_path: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [*SHORT, "--rounds", "4", "--into", str(tmp_path)]
    measured.interrupted = 6  # two measurements a round: in the third
    assert main(run) == 130
    held = _read(tmp_path)
    assert held["settings"]["rounds"] == 2 and [each["round"] for each in held["measurements"]] == [0, 0, 1, 1]
    output = capsys.readouterr().out
    assert "interrupted after 2 of 4 rounds; --resume goes on" in output and "one float32 scalar" in output
    assert (tmp_path / "transport.png").exists()

    assert main([*run, "--resume"]) == 0
    whole = _read(tmp_path)
    assert whole["measurements"][:4] == held["measurements"] and whole["settings"]["rounds"] == 4
    assert [each["round"] for each in whole["measurements"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert whole["summary"]["scalar"]["torch"]["batches_per_second"]["max"] == 10, "the sixth was lost"
    assert "rounds: 4, 2 of them there already" in capsys.readouterr().out

    assert main([*run, "--resume"]) == 0
    assert measured.count == 10, "there was nothing left to measure"


def test_what_is_resumed_must_have_been_asked_alike(
    tmp_path: Path, measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = [*SHORT, "--rounds", "1", "--into", str(tmp_path)]
    assert main(run) == 0
    with pytest.raises(SystemExit, match=r"is of other options \(workers\)"):
        main([*run, "--rounds", "2", "--workers", "3", "--resume"])
    monkeypatch.setattr(results, "_cpu", lambda: "another processor")
    with pytest.raises(SystemExit, match=r"is of other machine \(cpu\)"):
        main([*run, "--rounds", "2", "--resume"])
    (tmp_path / "transport.json").write_text('{"bench": ')
    with pytest.raises(SystemExit, match="is no JSON"):
        main([*run, "--resume"])
    assert measured.count == 2


def test_a_file_is_the_old_one_until_it_is_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    results.write({"a": 1}, path)
    with pytest.raises(TypeError):
        results.write({"a": object()}, path)
    assert json.loads(path.read_text()) == {"a": 1} and list(path.parent.iterdir()) == [path]


def test_the_whole_time_is_shown_first_and_the_rest_after_each(
    tmp_path: Path, measured: Measured, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, "--rounds", "20", "--into", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"transport: rounds: 20; about 2 min; into .*transport\.json", lines[0])
    left = [line for line in lines if line.startswith("round ")]
    assert left[0] == "round 1 of 20: scalar, torch (about 2 min left)"
    assert left[-1] == "round 20 of 20: scalar, torch (about 1 s left)", "at the pace of what takes no time"


@pytest.mark.long
def test_ctrl_c_leaves_the_rounds_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", *SHORT, "--rounds", "1000", "--into", str(tmp_path)]
    bench = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "transport.json").exists() and bench.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        bench.send_signal(signal.SIGINT)
        output, _ = bench.communicate(timeout=90)
    finally:
        bench.kill()
    assert bench.returncode == 130, output
    rounds = _read(tmp_path)["settings"]["rounds"]
    assert rounds >= 1 and f"interrupted after {rounds} of 1000 rounds" in output
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and str(bench.pid) in _arguments(pid)[-1:]]


def _arguments(pid: str) -> list[str]:
    """What a process was started with; of a measurement's, the last is the bench's number."""
    try:
        given = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return given.decode(errors="replace").rstrip("\0").split("\0") if b"bench.core.child" in given else []


@pytest.mark.long
def test_only_a_checkout_builds_what_only_the_bench_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    core = importlib.import_module("distutils.core")  # setuptools' own, by this name
    monkeypatch.chdir(ROOT)
    for inplace in (False, True):
        package = core.run_setup("setup.py", ["-q", "build_ext"], stop_after="init")
        build = package.get_command_obj("build_ext")
        build.inplace = inplace
        build.ensure_finalized()
        of_bench = [each.name for each in build.extensions if not each.name.startswith("shmloader.")]
        assert of_bench == (["bench.core._probe"] if inplace else [])
        assert all(each.name.startswith("shmloader.") for each in package.ext_modules), "an install would map `bench`"
