"""loader.trace(): a file for Perfetto in which made sleeps stand as they were timed outside."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpu_double import installed
from scripts import run_script
from torch.utils.data import Dataset

import shmloader

MS = 1e6  # nanoseconds


class Timed(Dataset[torch.Tensor]):
    """Samples that hold the times of their beginning and end, by the clock that all processes share."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        began = time.monotonic_ns()
        time.sleep(self.seconds)
        return torch.tensor([began, time.monotonic_ns()])


def slow_collate(samples: Any) -> Any:
    began = time.monotonic_ns()
    time.sleep(0.004)
    return torch.stack(samples), torch.tensor([began, time.monotonic_ns()])


def events(path: pathlib.Path, **which: Any) -> list[dict[str, Any]]:
    """Those of the file's events that have these values."""
    result = json.loads(path.read_text())
    return [one for one in result["traceEvents"] if all(one.get(name) == value for name, value in which.items())]


def base(path: pathlib.Path) -> int:
    """What the file's time 0 is, by the monotonic clock."""
    return int(json.loads(path.read_text())["otherData"]["monotonic clock at 0, in ns"])


def check(path: pathlib.Path) -> None:
    """What viewers rely on: slices of a lane lie beside or within one another, and arrows go from slice to slice."""
    slices: dict[Any, list[tuple[float, float]]] = collections.defaultdict(list)
    for one in events(path, ph="X"):
        assert one["dur"] >= 0 and one["ts"] >= 0
        slices[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    for lane in slices.values():
        open_until: list[float] = []
        for begins, ends in sorted(lane, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begins + 1e-3:
                open_until.pop()
            assert not open_until or ends <= open_until[-1] + 1e-3, "two slices of a lane overlap"
            open_until.append(ends)
    begin = {one["id"]: one for one in events(path, ph="s")}
    end = {one["id"]: one for one in events(path, ph="f")}
    assert begin.keys() == end.keys()
    for number, one in begin.items():
        other = end[number]
        assert one["ts"] <= other["ts"] and one["tid"] != other["tid"]
        for tip in (one, other):
            assert any(a <= tip["ts"] <= b for a, b in slices[tip["pid"], tip["tid"]]), "an arrow from or to nowhere"
    opened = collections.Counter((one["cat"], one["id"]) for one in events(path, ph="b"))
    assert opened == collections.Counter((one["cat"], one["id"]) for one in events(path, ph="e"))
    assert set(opened.values()) <= {1}


def test_sleeps_and_waits_stand_as_they_were_timed_outside(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"
    loader = shmloader.DataLoader(Timed(40, 0.002), batch_size=4, num_workers=2, collate_fn=slow_collate)
    turns, made = [], []
    with loader, loader.trace(path, batches=8):
        batches = iter(loader)
        for _ in range(8):
            asked = time.monotonic_ns()
            samples, collated = next(batches)
            turns.append((asked, time.monotonic_ns()))
            made.append((int(samples[0, 0]), int(samples[-1, 1]), int(collated[0]), int(collated[1])))
            time.sleep(0.003)
    check(path)
    zero = base(path)

    apart: list[float] = []  # shares of what may be

    def same(one: dict[str, Any], started: int, ended: int, outside: bool) -> None:
        """A slice around what was timed, or what was timed around a slice."""
        begins, ends = one["ts"] * 1000 + zero, (one["ts"] + one["dur"]) * 1000 + zero
        least = min(started - begins, ends - ended) if outside else min(begins - started, ended - ends)
        assert least > -1000, f"{one}: {least} ns"  # JSON's numbers are rounded
        apart.append((abs(begins - started) + abs(ends - ended)) / max(MS, 0.02 * (ended - started)))

    by_batch = {
        name: {one["args"]["batch"]: one for one in events(path, ph="X", name=name)} for name in ("fetch", "collate")
    }
    for batch, (started, fetched, collating, collated) in enumerate(made):
        same(by_batch["fetch"][batch], started, fetched, True)
        same(by_batch["collate"][batch], collating, collated, True)
    asked = events(path, ph="X", name="next()")
    assert len(asked) == 8
    for one, turn in zip(asked, turns, strict=True):
        same(one, *turn, False)
    steps = events(path, ph="X", name="step")
    assert len(steps) == 7
    for one, (_, started), (ended, _) in zip(steps, turns[:-1], turns[1:], strict=True):
        same(one, started, ended, True)
    apart.sort()
    assert apart[len(apart) // 2] < 1, "what else runs may come between the clocks, but not as a rule"
    near = sum(share < 1 for share in apart)
    print(f"\n{near} of {len(apart)} slices within 2 % or 1 ms, the median at {apart[15]:.3f} of that")
    names = {one["tid"]: one["args"]["name"] for one in events(path, name="thread_name")}
    assert names[0] == "trainer" and names[1].startswith("worker 0 (pid ") and names[2].startswith("worker 1 (pid ")
    assert len(events(path, ph="f")) == 8
    assert {one["tid"] for one in events(path, ph="s")} == {1, 2}


@pytest.mark.parametrize(
    "options",
    [{"schedule": "steal"}, {"batch_size": 4, "chunk_size": 2}, {"in_order": False}, {"spare_slots": 0}],
    ids=str,
)
def test_all_ways_to_share_work(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"
    loader = shmloader.DataLoader(Timed(40, 0), **{"batch_size": 2, **options}, num_workers=2)
    with loader, loader.trace(path, batches=6):
        for _ in zip(range(6), loader, strict=False):
            pass
    check(path)
    fetched = collections.Counter(one["args"]["batch"] for one in events(path, ph="X", name="fetch"))
    assert len(fetched) >= 6 and (set(fetched) >= set(range(6)) or "in_order" in options)
    assert set(fetched.values()) == {2 if "chunk_size" in options else 1}


def test_it_is_written_when_the_batches_have_come_and_only_then(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"
    with shmloader.DataLoader(Timed(6, 0), num_workers=1) as loader:
        trace = loader.trace(path, batches=8)
        assert len(list(loader)) == 6
        assert not path.exists(), "an epoch has six"
        batches = iter(loader)
        next(batches)
        assert not path.exists()
        next(batches)
        assert path.exists() and trace.written
        assert batches._steps.observer is None, "from here on it is an iterator as any other"
        before = path.read_text()
        for _ in batches:
            pass
    assert path.read_text() == before
    assert len(events(path, ph="X", name="next()")) == 8
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_it_begins_in_the_midst_of_an_epoch(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"
    with shmloader.DataLoader(Timed(20, 0), num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        loader.trace(path, batches=3)
        for _ in range(3):
            next(batches)
    taken = [one["args"]["batch"] for one in events(path, ph="X", name="fetch")]
    assert taken[:3] == [5, 6, 7]
    check(path)


def test_closing_the_loader_writes_what_there_is(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(Timed(20, 0), num_workers=1)
    loader.trace(tmp_path / "t.json")
    next(iter(loader))
    loader.close()
    assert len(events(tmp_path / "t.json", ph="X", name="next()")) == 1


def test_an_iterator_that_is_dropped_still_ends(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(Timed(20, 0), num_workers=1)
    loader.trace(tmp_path / "t.json")
    batches = iter(loader)
    next(batches)
    worker = batches._workers[0]
    del batches
    assert not worker.is_alive(), "a trace keeps no iterator"
    loader.close()


def test_without_workers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"
    loader = shmloader.DataLoader(Timed(4, 0.002), batch_size=2)
    batches = iter(loader)
    before = vars(batches).get("_next_data")
    with loader.trace(path):
        assert vars(batches)["_next_data"] is not before
        assert len(list(batches)) == 2
    assert vars(batches).get("_next_data") is before
    assert loader.stats().batches == 2, "they are counted all the same"
    check(path)
    asked = events(path, ph="X", name="next()")
    assert len(asked) == 2 and all(one["dur"] > 3500 for one in asked)


def test_with_a_stage(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"
    loader = shmloader.DataLoader(
        Timed(6, 0), num_workers=1, device="cpu", on_device=lambda batch: time.sleep(0.003) or batch
    )
    with loader, loader.trace(path):
        list(loader)
    check(path)
    assert len(events(path, ph="X", name="next()")) == 6
    sent = events(path, ph="X", name="to device")
    turns = [(one["ts"], one["ts"] + one["dur"]) for one in events(path, ph="X", name="next()")]
    assert len(sent) == 6 and all(one["dur"] > 2990 for one in sent)
    assert all(any(a <= one["ts"] and one["ts"] + one["dur"] <= b + 1 for a, b in turns) for one in sent)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from installed(monkeypatch)


def test_with_a_thread_that_is_ahead(gpu: Any, tmp_path: pathlib.Path) -> None:
    gpu()
    path = tmp_path / "t.json"
    loader = shmloader.DataLoader(Timed(30, 0), num_workers=1, device="cuda", on_device=lambda batch: batch)
    with loader, loader.trace(path):
        list(loader)
    check(path)
    lanes = {one["args"]["name"]: one["tid"] for one in events(path, name="thread_name")}
    thread = lanes["prefetch thread"]
    assert {one["tid"] for one in events(path, ph="X", name="next()")} == {lanes["trainer"]}
    assert {one["tid"] for one in events(path, ph="f")} == {thread}
    sent = events(path, ph="X", name="to device")
    assert {one["tid"] for one in sent} == {thread} and 25 <= len(sent) <= 30, "the first may be sent before it begins"


def test_one_at_a_time(tmp_path: pathlib.Path) -> None:
    with shmloader.DataLoader([1, 2], num_workers=1) as loader:
        loader.trace(tmp_path / "a.json", batches=1)
        with pytest.raises(RuntimeError, match=r"is being recorded, into .*a\.json.*close\(\) that one first"):
            loader.trace(tmp_path / "b.json")
        list(loader)
        loader.trace(tmp_path / "b.json", batches=1)
        list(loader)
    assert sorted(os.listdir(tmp_path)) == ["a.json", "b.json"]


def test_an_exception_in_place_of_a_batch(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.json"

    class Fails(Timed):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 2:
                raise ValueError("two")
            return super().__getitem__(index)

    with shmloader.DataLoader(Fails(5, 0), num_workers=1) as loader, loader.trace(path):
        batches = iter(loader)
        for index in range(5):
            if index == 2:
                with pytest.raises(ValueError, match="two"):
                    next(batches)
            else:
                next(batches)
    check(path)
    assert len(events(path, ph="X", name="make")) == 1


@pytest.mark.parametrize("batches", [0, -1, True, 1.5])
def test_bad_numbers(batches: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="batches should be a positive integer"):
        shmloader.DataLoader([1]).trace(tmp_path / "t.json", batches=batches)


def test_a_folder_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        shmloader.DataLoader([1]).trace(tmp_path / "nowhere" / "t.json")


def test_a_file_that_cannot_be_written_does_not_stop_the_training(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    loader = shmloader.DataLoader(Timed(3, 0))
    loader.trace(folder / "t.json", batches=2)
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match=r"the trace .*t\.json cannot be written"):
        assert len(list(loader)) == 3


AT_EXIT = """
import os, sys, shmloader
loader = shmloader.DataLoader(list(range(10)), num_workers=1)
loader.trace(sys.argv[1])
batches = iter(loader)
next(batches)
if os.fork() == 0:
    sys.exit()
os.wait()
assert not os.path.exists(sys.argv[1]), "a child writes no file of its parent's"
"""


@pytest.mark.long
def test_at_the_interpreters_end(tmp_path: pathlib.Path) -> None:
    ran = run_script(AT_EXIT.replace("sys.argv[1]", repr(str(tmp_path / "t.json"))))
    assert ran.status == 0, ran.err
    assert len(events(tmp_path / "t.json", ph="X", name="next()")) == 1
    assert os.listdir(tmp_path) == ["t.json"]


def test_the_profiler_sees_batches(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(list(range(4)), num_workers=1)
    with loader, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        loader.trace(tmp_path / "t.json")
        list(loader)
    names = {event.key for event in seen.key_averages()}
    assert any(name.startswith("enumerate(DataLoader)#") for name in names), names
