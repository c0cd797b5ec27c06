"""The bench runs, and its figures are those of its rounds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hanging import hangs, is_running, wait_until

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench import commands
from bench.__main__ import main
from bench.core.results import console
from bench.core.results import machine as bench_machine
from bench.device.question import FIGURES as DEVICE_FIGURES
from bench.device.question import summary as device_summary
from bench.transport.question import summary as transport_summary

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {
    "batches_per_second",
    "bytes_per_second",
    "trainer_cpu",
    "workers_cpu",
    "trainer_faults",
    "tree_faults",
}


@pytest.mark.long
def test_transport_measures_both_loaders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["scalar", "small-images"]
    arguments = ["transport", "--rounds", "1", "--seconds", "0.05", "--into", str(tmp_path), "--cases", *cases]
    assert main([*arguments, "--start-method", "fork"]) == 0
    written = (tmp_path / "transport.json").read_text()
    result = json.loads(written)
    assert set(result["summary"]) == set(cases)
    assert len(result["measurements"]) == 4
    for measurement in result["measurements"]:
        assert set(measurement) >= FIGURES
        assert measurement["batches"] > 0 and measurement["batches_per_second"] > 0 and measurement["trainer_cpu"] > 0
        assert measurement["tree_faults"] >= measurement["trainer_faults"] >= 0
    for case in cases:
        ratio = _ratio(result["measurements"], case)
        assert result["summary"][case]["ratio"] == {"median": ratio, "min": ratio, "max": ratio}
    assert {"cpu", "cores", "kernel", "torch", "python", "shmloader", "date"} <= set(result["machine"])
    assert not re.search(r'"[^"]*(?<![\w.])/\w+/[^"]*"', written), "an absolute path in the JSON"
    assert (tmp_path / "transport.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "one float32 scalar" in capsys.readouterr().out


def test_summary_takes_ratios_round_by_round() -> None:
    speeds = {"torch": (10, 20, 40), "shmloader": (30, 40, 160), "memcpy": (20, 80, 160), "streaming": (40, 80, 320)}
    measurements: list[dict[str, Any]] = [
        {
            "round": at,
            "case": "uint8-images",
            "subject": subject,
            **dict.fromkeys(FIGURES, 1.0),
            "batches_per_second": speed[at],
            "bytes_per_second": speed[at],
        }
        for subject, speed in speeds.items()
        for at in range(3)
    ]
    summary = transport_summary("uint8-images", measurements)
    assert summary["ratio"] == {"median": 3, "min": 2, "max": 4}
    assert summary["shmloader"]["of_memcpy"] == {"median": 1, "min": 0.5, "max": 1.5}
    assert summary["torch"]["of_streaming"] == {"median": 0.25, "min": 0.125, "max": 0.25}
    measurements[1] = {"round": 1, "case": "uint8-images", "subject": "torch", "failure": "killed after 1 s"}
    assert transport_summary("uint8-images", measurements)["ratio"] == {"median": 3.5, "min": 3, "max": 4}


BUSY = ("boundary", "chunked", "early", "steady")


@pytest.mark.long
def test_start_measures_each_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # rich breaks words of headings where there is less room
    arguments = ["start", "--rounds", "1", "--restarts", "1", "--workers", "1", "--megabytes", "0"]
    assert main([*arguments, "--ways", "fork", "forkserver, frozen", "--into", str(tmp_path)]) == 0
    ways = json.loads((tmp_path / "start.json").read_text())["summary"]["small, 1 workers"]
    assert set(ways) == {"fork", "forkserver, frozen"} and all(each["next"]["median"] > 0 for each in ways.values())
    out = capsys.readouterr().out
    assert "further" in out and "killed worker:" in out


@pytest.mark.long
def test_latency_measures_both_loaders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["latency", "--rounds", "1", "--restarts", "1", "--start-methods", "fork"]
    assert main([*arguments, "--into", str(tmp_path)]) == 0
    moments = json.loads((tmp_path / "latency.json").read_text())["summary"]["fork"]
    assert set(moments) == {*("first", "next", "next_gap", "persistent", "persistent_gap"), *BUSY}
    for each in moments.values():
        assert each["ratio"]["median"] == each["shmloader"]["median"] / each["torch"]["median"]
    assert "persistent workers" in capsys.readouterr().out


def test_a_failure_is_named_and_nothing_else_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["transport", "--rounds", "1", "--seconds", "0.01", "--timeout", "0.05", "--cases", "scalar"]
    assert main([*arguments, "--into", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "round 1, scalar, torch: killed after 0.07 s" in out
    assert json.loads((tmp_path / "transport.json").read_text())["summary"]["scalar"]["ratio"] is None
    assert (tmp_path / "transport.png").exists()


def test_a_child_ends_with_the_bench(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    code = f"from bench.core import child; child.run('subprocess:call', {{'args': {hangs(note)!r}}}, 60)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as bench:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        bench.kill()
    child_pid, grandchild_pid = (int(pid) for pid in note.read_text().split())
    try:
        wait_until(lambda: not is_running(child_pid))
    finally:
        os.kill(grandchild_pid, 9)  # a worker of a loader ends with its trainer; this one does not


def test_device_reports_what_it_cannot_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: it would be measured")
    assert main(["device", "--into", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    why = "there is no GPU" if torch.version.cuda or torch.version.hip else "this torch"
    assert f"nothing is measured, for {why}" in out and "GPU's idle share" in out and not list(tmp_path.iterdir())


def test_device_compares_round_by_round(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.device import measure

    measurements: list[dict[str, Any]] = []
    for at in range(2):
        measurements.append({"round": at, "subject": "ceiling", "bytes_per_second": 50e9})
        rate = 25e9 * (at + 1)
        measurements.append({"round": at, "subject": "transfer", "bytes_per_second": rate, "page_locked": 1})
        for k, way in enumerate(measure.WAYS):
            figures = {**dict.fromkeys(DEVICE_FIGURES, 1.0), "next_p99": 1 / 2**k}
            measurements.append({"round": at, "subject": way, **figures})
    summary = device_summary(measurements)
    assert summary["of_ceiling"] == {"median": 0.75, "min": 0.5, "max": 1}
    assert summary["next_p99_of_torch"]["shmloader device="]["median"] == 0.25
    settings = {"rounds": 2, "workers": 2, "batch": measure.CASE.label}
    machine = {"gpu": "", **bench_machine()}
    asked = commands.QUESTIONS["device"](commands.parser().parse_args(["device"]))
    asked.show(console(), {"summary": summary, "settings": settings, "machine": machine, "measurements": []})
    out = capsys.readouterr().out
    assert "75.0 [50.0..100] %" in out and "shmloader device=" in out


@pytest.mark.long
def test_what_is_measured_imports_neither_tables_nor_pictures() -> None:
    """A spawned worker imports the module that its dataset is from, and would have to import those as well."""
    measured = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("bench/*/measure.py")]
    modules = ["bench.core.child", "bench.core.throughput", "bench.core.ceiling"]
    modules += [".".join(path.parts) for path in measured]
    code = f"import sys, {', '.join(modules)}; print({{'rich', 'matplotlib'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(measured) > 6 and ran == "set()\n"


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bench.__main__.EXTRAS", ("matplotlib", "no_such_package"))
    assert main(["transport"]) == 2
    assert capsys.readouterr().err == "python -m bench needs no_such_package: pip install 'shmloader[bench]'\n"


def _ratio(measurements: list[dict[str, Any]], case: str) -> float:
    speed = {each["subject"]: each["batches_per_second"] for each in measurements if each["case"] == case}
    return speed["shmloader"] / speed["torch"]


@pytest.mark.long
def test_resume_measures_both_loaders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["resume", "--rounds", "1", "--seconds", "0.05", "--samples", "20000", "--restarts", "1"]
    assert main([*arguments, "--start-methods", "fork", "--into", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "resume.json").read_text())["summary"]
    for by in ("sequential", "random", "batch", "distributed"):
        ours = summary["states"][by]["shmloader"]
        assert 0 < ours["state_bytes"]["median"] < 1024
        assert all(ours[figure]["median"] > 0 for figure in ("first_state", "state", "step_with", "step_without"))
    resumed = summary["resumes"]["fork"]["shmloader"]
    assert resumed["later"]["median"] == resumed["resumed"]["median"] - resumed["fresh"]["median"]
    assert "resume to first batch" in capsys.readouterr().out
