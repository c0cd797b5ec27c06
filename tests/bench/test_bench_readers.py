"""`python -m bench readers` measures several jobs that read one loader."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from bench.commands import parser, run
from bench.readers import question
from bench.readers.beside_tensorsocket import PORTS, TENSORSOCKET, free_ports

ASKED = ["readers", "--rounds", "1", "--cases", "scalar", "--readers", "2", "--seconds", "0.2", "--into"]


def test_ports_differ_and_are_free() -> None:
    assert len(set(free_ports())) == PORTS


def test_a_library_that_is_not_installed_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(question, "missing", lambda modules: f"not installed: {', '.join(modules)}")
    given = question.Readers(parser().parse_args([*ASKED, str(tmp_path)]))
    turns = {turn.labels["way"]: turn for turn in given.turns(0)}
    assert turns[TENSORSOCKET].failure == "not installed: tensorsocket"
    absent = {"way": TENSORSOCKET, "failure": "not installed"}
    assert not given.failed({"measurements": [absent, {"way": "served"}]})
    assert given.failed({"measurements": [absent, {"way": "served", "failure": "killed"}]})


@pytest.mark.long
def test_it_measures_one_and_several_jobs(tmp_path: Path) -> None:
    before = multiprocessing.active_children()
    assert run(parser().parse_args([*ASKED, str(tmp_path)])) == 0
    result = json.loads((tmp_path / "readers.json").read_text())["summary"]["scalar"]
    assert {"alone, 1, touched", "served, 2, touched", "each its own, 2, touched"} <= set(result)
    assert all(way["slowest"]["median"] > 0 for way in result.values())
    assert multiprocessing.active_children() == before
