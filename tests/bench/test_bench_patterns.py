"""The bench of ways of use: each gives torch's batches, ratios are of one round, and its page has what was published.

Its processes are forked from one that has imported torch; here it is also tested that none outlives its measurement.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import BOTH, assert_same
from hanging import hangs, is_running, wait_until

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
pytest.importorskip("rich")

from bench.__main__ import main
from bench.core import session
from bench.core.child import ChildError
from bench.core.results import machine as bench_machine
from bench.core.warm import warm
from bench.core.watched import memory
from bench.patterns import page
from bench.patterns.measure import MADE
from bench.patterns.question import FIGURES, summary
from bench.patterns.table import PATTERNS

NOT_COMPARED = ("300 MB", "PIL pictures")  # two gigabytes; pictures hold an object that equals only itself
ROOT = Path(__file__).resolve().parents[2]


def measured(at: int, subject: str, *figures: float, pattern: str = "300 MB") -> dict[str, Any]:
    return {"round": at, "pattern": pattern, "subject": subject, **dict(zip(FIGURES, figures, strict=True))}


@pytest.mark.parametrize(
    ("ratios", "is_above"),
    [((1.15, 1.15, 1.3), False), ((1.16, 0.1, 0.1), True), ((0.1, 1.16, 0.1), True), ((0.1, 0.1, 1.31), True)],
)
def test_what_is_above_the_limits_is_listed_at_the_end(ratios: tuple[float, ...], is_above: bool) -> None:
    measurements = [measured(0, "torch", 1, 1, 1, 0), measured(0, "shmloader", *ratios, 0)]
    found = {"300 MB": summary("300 MB", ["torch", "shmloader"], measurements)}
    result = {"summary": found, "machine": bench_machine()}
    rows = [line for line in page.tables(result) if line.startswith("| 300 MB")]
    assert len(rows) == 1 + is_above, "in its group, and again in the table at the end"


def test_growth_is_that_of_the_second_half() -> None:
    seen = [(10 + at, 100.0 + at) for at in range(-2, 11)]
    assert memory(seen, 10, 20) == {"memory": 110, "growth": 5}
    assert memory([*seen, (30, 500)], 10, 20) == {"memory": 500, "growth": 5}, "what is kept counts when all is over"
    flat = [(0, 1.0), (1, 90), (2, 20), (3, 30), (4, 40), (5, 300), (8, 30), (9, 40)]
    assert memory(flat, 0, 10) == {"memory": 300, "growth": 0}, "not what was needed for a moment"
    assert memory([(0, 90)], 0, 10) == {"memory": 90, "growth": 0}, "too short to tell"


def test_the_page_has_the_published_figures() -> None:
    result = json.loads(page.RESULT.read_text(encoding="utf-8"))
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.text(text, result) == text, "python -m bench.patterns.page"
    assert set(result["summary"]) == set(PATTERNS) and len(PATTERNS) >= 80


@pytest.mark.long
def test_it_measures_torchs_loader_ours_and_another_checkouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    (other / "shmloader").mkdir(parents=True)
    (other / "shmloader" / "__init__.py").write_text("from torch.utils.data import DataLoader\n")
    arguments = ["patterns", "--only", "short epochs", "no workers", "--rounds", "2", "--into", str(tmp_path)]
    assert main([*arguments, "--against", str(other)]) == 0
    result = json.loads((tmp_path / "patterns.json").read_text())
    order = ["torch", "before", "shmloader"]
    assert [each["subject"] for each in result["measurements"]] == [*order, *order, *2 * [*order[1:], order[0]]]
    for each in result["measurements"]:
        assert set(each) == {"round", "pattern", "subject", *FIGURES}
        assert each["wall"] > 0 and each["cpu"] > 0 and each["memory"] > 50e6
    assert "against" in result["machine"]
    assert " → " in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| no workers"))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in PATTERNS if name not in NOT_COMPARED])
def test_both_loaders_give_the_same_batches(name: str) -> None:
    """No pattern measures a loader that does something else, or cannot use the ring."""
    what, found = PATTERNS[name], []
    dataset = what.dataset()
    for kind in BOTH:
        torch.manual_seed(3)
        loader = kind(dataset, **{key: value() if key in MADE else value for key, value in what.options.items()})
        found.append(list(itertools.islice(loader, 3)))
    assert loader.rides_ring or not loader.num_workers
    assert_same(found[1], found[0])


def test_a_forked_process_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    note, looked = tmp_path / "pids", []
    with warm("subprocess") as parent:
        with pytest.raises(ChildError, match="killed after 1 s"):
            parent.run("subprocess:call", {"args": hangs(note)}, 1, looked.append)
        pids = {int(pid) for pid in note.read_text().split()}
        assert not any(map(is_running, pids)), "killed before the next measurement begins"
        assert looked and set(looked) <= pids, "the number of the session is that of its leader"
    assert not session.members(parent.session)


def test_a_forked_process_returns_its_result_or_its_complaint() -> None:
    with warm("bench.core.session") as parent:
        assert parent.run("bench.core.session:used", {"session": 1 << 22}, 60, lambda _: None) == [0, 0]
        with pytest.raises(ChildError, match="TypeError: used"):
            parent.run("bench.core.session:used", {"wrong": 1}, 60, lambda _: None)
        with pytest.raises(ChildError, match="exit code 3"):
            parent.run("os:_exit", {"status": 3}, 60, lambda _: None)
        assert parent.run("bench.core.session:used", {"session": 1 << 22}, 60, lambda _: None) == [0, 0]


def test_forked_processes_end_with_the_bench(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    code = f"""if True:
        from bench.core.warm import warm
        with warm("subprocess") as parent:
            parent.run("subprocess:call", {{"args": {hangs(note)!r}}}, 60, lambda _: None)
    """
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as bench:
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        bench.kill()
    leader, grandchild = (int(pid) for pid in note.read_text().split())
    try:
        wait_until(lambda: not is_running(leader))
    finally:
        os.kill(grandchild, signal.SIGKILL)  # a worker of a loader ends with its trainer; this one does not


def test_memory_without_what_is_shared() -> None:
    code = f"""if True:
        import mmap, os
        from bench.core import session
        own = os.setsid() or os.getpid()  # of a session in which nothing else runs
        with mmap.mmap(-1, {64 << 20}) as shared:
            before = session.memory(own), session.memory(own, with_shared=False)
            shared.write(b"1" * len(shared))
            after = session.memory(own), session.memory(own, with_shared=False)
        print(after[0] - before[0], after[1] - before[1])
    """
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with_shared, without = map(int, said.split())
    assert with_shared > 60 << 20
    assert without < 4 << 20
