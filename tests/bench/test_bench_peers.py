"""The race of all loaders: what is missing or hangs is named, nothing of it is left, and figures are of one round."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hanging import is_running, wait_until

pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core import child, throughput
from bench.core.cases import CASES, ENDLESS
from bench.core.loaders import Loader
from bench.core.question import Turn
from bench.peers import question as peers
from bench.peers.loaders import LOADERS


@pytest.mark.long
def test_peers_measures_beside_the_limit_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOADERS, "grain", Loader("Grain", lambda job: [], ("no_such_module",), hint="it is not"))
    arguments = "peers --rounds 1 --seconds 0.05 --cases detections epoch --start-method fork"
    assert main([*arguments.split(), "--loaders", "torch", "grain", "shmloader", "--into", str(tmp_path)]) == 0
    written = (tmp_path / "peers.json").read_text()
    result = json.loads(written)
    summary = result["summary"]["detections"]
    assert summary["grain"] == {"failure": "not installed: no_such_module (it is not)"}
    for loader in ("torch", "shmloader"):
        assert set(summary[loader]) == {*peers.FIGURES, "of_limit", "ours"}
        speed, limit = summary[loader]["batches_per_second"]["median"], summary["limit"]["batches_per_second"]["median"]
        assert summary[loader]["of_limit"]["median"] == pytest.approx(speed / limit)
        assert summary[loader]["tree_cpu"]["median"] > summary[loader]["trainer_cpu"]["median"] > 0
        assert summary[loader]["next_max"]["median"] >= summary[loader]["next_p50"]["median"] > 0
    assert summary["best"] == "torch" and summary["shmloader"]["ours"]["median"] == 1
    assert result["summary"]["epoch"]["torch"]["seconds"]["median"] > 0
    assert set(result["limits"]) == {"verbs", "calls", "wake_up"} and all(result["limits"].values())
    assert not re.search(r'"[^"]*(?<![\w.])/\w+/[^"]*"', written), "an absolute path in the JSON"
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    printed = capsys.readouterr().out
    assert "skipped: Grain, not installed: no_such_module" in printed and "limit, wake_up" in printed


def test_a_peer_that_fails_is_not_tried_again_and_ours_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    fails = {"torch"}

    def measure(turn: Turn) -> dict[str, Any]:
        subject = turn.arguments.get("loader", turn.function)
        asked.append(subject)
        if subject in fails:
            return {"failure": f"killed after {turn.timeout:g} s"}
        return dict.fromkeys((*peers.FIGURES, "verbs", "calls", "wake_up"), 0.5)

    monkeypatch.setattr(Turn, "measure", measure)
    asked_for = "peers --rounds 3 --cases scalar --loaders torch shmloader --into"
    arguments = [*asked_for.split(), str(tmp_path)]
    assert main(arguments) == 0
    assert asked.count("torch") == 1 and asked.count("shmloader") == 3
    assert "skipped: torch, killed after 64 s" in capsys.readouterr().out
    fails.add("shmloader")
    assert main(arguments) == 1


def test_ratios_are_of_one_round_and_the_limit_includes_handing_over() -> None:
    speeds = {"torch": (10, 20, 40), "spdl": (20, 30, 10), "ffcv": (90, 90, 90), "shmloader": (30, 40, 160)}
    measurements: list[dict[str, Any]] = [
        {"round": at, "case": "uint8-images", "subject": subject, **dict.fromkeys(peers.FIGURES, 1.0)}
        | {"batches_per_second": speed[at]}
        for subject, speed in speeds.items()
        for at in range(3)
    ]
    for at in range(3):
        measurements.append({"round": at, "case": "uint8-images", "subject": "limit", "batches_per_second": 100})
        measurements.append({"round": at, "case": "handover", "subject": "handover", "verbs": 0.01})
    summary = peers.summary("uint8-images", measurements)
    assert summary["torch"]["ours"] == {"median": 3, "min": 2, "max": 4}
    assert summary["limit"]["batches_per_second"]["median"] == pytest.approx(50)
    assert summary["shmloader"]["of_limit"]["max"] == pytest.approx(3.2)
    assert summary["best"] == "torch", "FFCV loads a file of its own, and SPDL's median is as high, but comes later"
    measurements[0] = {"round": 0, "case": "uint8-images", "subject": "torch", "failure": "killed after 1 s"}
    summary = peers.summary("uint8-images", measurements)
    assert summary["torch"] == {"failure": "killed after 1 s"} and summary["best"] == "spdl"


def test_a_batch_out_of_its_place_is_noticed() -> None:
    for case in ("small-images", "detections", "tokens"):
        what = CASES[case]
        dataset = what.dataset(ENDLESS, "")
        throughput.check(what, dataset, 3, what.batch(dataset, 3))
        for other in (2, 4, 5, 30):
            with pytest.raises(AssertionError, match="batch 3 is not the one"):
                throughput.check(what, dataset, 3, what.batch(dataset, other))


@pytest.mark.parametrize(
    "without_tracker", [False, pytest.param(True, marks=pytest.mark.long)], ids=["tracker", "no_tracker"]
)
def test_what_a_hanging_peer_leaves_is_removed(tmp_path: Path, without_tracker: bool) -> None:
    note, script = tmp_path / "note", tmp_path / "peer.py"
    script.write_text(
        "import os, signal, tempfile, time\n"
        "from multiprocessing import resource_tracker, shared_memory\n"
        "segment = shared_memory.SharedMemory(create=True, size=4096)\n"
        f"if not {without_tracker}:\n"
        "    segment.close()\n"  # nobody maps it: only the tracker knows of it, as of a batch on its way
        "child = os.fork()\n"
        "if not child:\n"
        "    os.setpgid(0, 0)\n"  # out of its leader's group
        "    time.sleep(1000)\n"
        f"if {without_tracker}:\n"
        "    os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)\n"
        "file = tempfile.mkstemp()[1]\n"
        f"open({str(note)!r}, 'w').write(f'{{segment.name}} {{child}} {{file}}')\n"
        "time.sleep(1000)\n"
    )
    for limit in (1, 4, 16, 64):  # until it has come so far
        with pytest.raises(child.ChildError, match="killed after"):
            child.run("runpy:run_path", {"path_name": str(script)}, limit)
        if note.exists():
            break
    name, pid, file = note.read_text().split()
    assert not Path("/dev/shm", name).exists()
    wait_until(lambda: not is_running(int(pid)))  # it is reaped by another process
    assert not Path(file).exists()


def test_two_runs_agree_where_their_spreads_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def written(name: str, *spreads: tuple[float, float]) -> str:
        summary = {}
        for k, (least, most) in enumerate(spreads):
            found = {"median": (least + most) / 2, "min": least, "max": most}
            other = {"median": 1.0 if name == "one" else 2.0, "min": 1.0, "max": 2.0}
            summary[f"case{k}"] = {"torch": {"batches_per_second": found, "next_max": other}, "best": "torch"}
        (tmp_path / name).write_text(json.dumps({"bench": "peers", "settings": {"rounds": 3}, "summary": summary}))
        return str(tmp_path / name)

    one = written("one", *11 * [(10, 12)])
    assert main(["agree", one, written("near", *11 * [(12, 14)])]) == 0
    assert "11 of 11 figures of peers agree" in capsys.readouterr().out
    assert main(["agree", one, written("by chance", *2 * [(12.5, 14)], *9 * [(12, 14)])]) == 0  # one in ten, and over
    output = capsys.readouterr().out
    assert (
        "9 of 11" in output and "about 2 of them would not" in output and "case1, torch, batches_per_second" in output
    )
    assert main(["agree", one, written("far", *3 * [(12.5, 14)], *8 * [(12, 14)])]) == 1
    assert main(["agree", one, written("nothing")]) == 1
