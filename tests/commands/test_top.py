"""`shmloader top`: a running loader as another process sees it, in a terminal of its own, without touching it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from conftest import children
from scripts import ROOT
from torch.utils.data import Dataset

import shmloader
from shmloader.commands import line
from shmloader.commands.top import command, screen, stacks, view
from shmloader.commands.top.processes import state_of
from shmloader.commands.top.rings import Rings
from shmloader.commands.top.view import LaneView, LoaderView, Watched
from shmloader.core.onlooker import EntryNow, Onlooker, OtherVersion
from shmloader.core.ring import ENTRY_BYTES, HEADER_BYTES, PAYLOAD_BYTES, WORKER_BYTES
from shmloader.system.call_stacks import TELL
from shmloader.system.processes import files_of

RING_VERSION = 14  # of atomics.h


class Pictures(Dataset[torch.Tensor]):
    """Samples that take 10 ms, or that never come."""

    def __init__(self, hangs: bool) -> None:
        self.hangs = hangs

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        while self.hangs:
            look_closely()
        time.sleep(0.01)
        return torch.zeros(1000)


def look_closely() -> None:
    time.sleep(0.05)


def train(hangs: bool) -> None:
    for _ in shmloader.DataLoader(Pictures(hangs), batch_size=2, num_workers=2):
        pass


@contextlib.contextmanager
def training(hangs: bool = False) -> Iterator[int]:
    """A training in another process, and its pid; it is killed."""
    process = torch.multiprocessing.get_context("fork").Process(target=train, args=(hangs,))
    process.start()
    try:
        assert process.pid is not None
        yield process.pid
        assert process.is_alive(), "who is watched must not notice"
    finally:
        for worker in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)  # a stopped one would not end with its trainer
        process.kill()
        process.join()


def until(what: Callable[[], Any]) -> Any:
    """What a function gives, as soon as that is true."""
    end = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


def shared_maps() -> set[str]:
    """The lines of this process's mappings that are of shared memory."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return {line for line in maps if "/dev/shm/" in line or "/memfd:" in line}


class Eyes:
    """Top.look(), again and again, from this process."""

    def __init__(self, pid: int, stacks: bool = False) -> None:
        self.top = command.Top(Rings(pid), stacks)

    def loader(self) -> LoaderView | None:
        found = self.top.look()
        assert len(found) <= 1
        return found[0] if found else None

    def lanes(self) -> list[LaneView]:
        loader = self.loader()
        return [] if loader is None else loader.lanes

    def pids(self) -> list[int]:
        """The workers', once all have begun."""
        found = [lane.pid for lane in self.lanes()]
        return found if all(found) else []


def test_a_training_that_runs() -> None:
    with training() as trainer:
        eyes = Eyes(trainer)
        loader = until(lambda: (seen := eyes.loader()) is not None and seen.batches_per_s > 0 and seen)
        assert "Pictures" in loader.label and loader.trainer == trainer
        assert Rings(os.getpid()).find() == [] and trainer in [held.trainer for held in Rings(None).find()]
        assert loader.most == 4 and loader.deaths == 0 and loader.ring_bytes > 0
        assert [lane.worker for lane in loader.lanes] == [0, 1]
        assert all(state_of(lane.pid) and not lane.stuck and lane.memory_bytes > 0 for lane in loader.lanes)
        busy = until(lambda: [lane for lane in eyes.lanes() if lane.doing == "fetches" and lane.batch is not None])
        assert busy[0].busy > 0
        assert until(lambda: (seen := eyes.loader()) is not None and seen.input_wait > 0.2 and seen)
        assert json.loads(json.dumps(loader.to_dict()))["lanes"][0]["pid"] == loader.lanes[0].pid
        lines = "\n".join(screen.plain([loader], {}))
        assert "Pictures" in lines and "input wait" in lines and str(loader.lanes[1].pid) in lines


def test_the_ring_is_read_and_nothing_is_written() -> None:
    with training() as trainer:
        files, before = files_of(os.getpid()), shared_maps()
        eyes = Eyes(trainer)
        until(eyes.loader)
        mine = shared_maps() - before
        assert mine and {line.split()[1] for line in mine} == {"r--s"}
        assert files_of(os.getpid()) == files, "descriptors are open no longer than it takes to map"
        del eyes


@contextlib.contextmanager
def bogus(workers: int, label: bytes = b"") -> Iterator[int]:
    """Memory of this process that looks like a ring's, and its descriptor."""
    fd = os.memfd_create("shmloader")
    try:
        os.ftruncate(fd, HEADER_BYTES + workers * (WORKER_BYTES + ENTRY_BYTES + PAYLOAD_BYTES))
        words = (0x676E69726D6873, RING_VERSION, workers, workers, workers, 1, 1)
        os.pwrite(fd, struct.pack("<QIIIIII8x32xQQ", *words, 1, os.getpid()), 0)
        os.pwrite(fd, label, HEADER_BYTES - 128)
        yield fd
    finally:
        os.close(fd)


def test_a_ring_that_is_cut_short() -> None:
    top = command.Top(Rings(os.getpid()), False)
    with bogus(workers=64) as fd:
        assert len(top.look()) == 1
        for size in (HEADER_BYTES, 0):
            os.ftruncate(fd, size)
            assert top.look() == []


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    with bogus(workers=1, label=b"\x1b]0;owned\x07\x1b[2JRange\nline\x9b"):
        (loader,) = command.Top(Rings(os.getpid()), False).look()
        lines = screen.plain([replace(loader, lanes=[replace(loader.lanes[0], pid=7)])], {7: "a line\n\x1b[2Janother"})
    assert lines[0].startswith("?]0;owned??[2JRange?line�: pid") and lines[-1] == "a line\n?[2Janother"


def test_a_worker_that_is_stopped_and_who_holds_the_batch() -> None:
    with training() as trainer:
        eyes = Eyes(trainer)
        pid = until(eyes.pids)[0]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: [lane for lane in eyes.lanes() if lane.stuck and lane.pid == pid and "stopped" in lane.doing])
        loader = until(lambda: (seen := eyes.loader()) is not None and seen.held_up and seen)
        assert (
            f"worker 0 (pid {pid}), which is stopped by a signal" in loader.held_up or "not claimed" in loader.held_up
        )
        assert [lane.worker for lane in loader.lanes if lane.awaited] == [0]
        assert "waits for batch" in "\n".join(screen.plain([loader], {}))
        loader = until(lambda: (seen := eyes.loader()) is not None and seen.waits_s > 2 and seen)
        assert loader.input_wait > 0.6, "the call that is under way counts"
        os.kill(pid, signal.SIGCONT)
        until(lambda: not any(lane.stuck for lane in eyes.lanes()))


def test_the_stack_of_a_worker_that_hangs() -> None:
    with training(hangs=True) as trainer:
        eyes = Eyes(trainer, stacks=True)
        until(lambda: eyes.loader() and "look_closely" in "".join(eyes.top.stacks.values()))
        found = "".join(eyes.top.stacks.values())
        assert "in _fill" in found or "fetch" in found
        assert "worker 0:" in "\n".join(screen.plain(eyes.top.look(), eyes.top.stacks))
        pid = next(iter(eyes.top.stacks))
        assert "look_closely" in stacks.stack_of(pid), "it can be asked again"
        os.kill(pid, signal.SIGSTOP)
        assert "it does not answer; its state is T (stopped)" in stacks.stack_of(pid)


def test_whom_not_to_ask() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert "still being started, or has ended" in stacks.stack_of(child.pid), "the signal would kill it"
        assert child.poll() is None
    finally:
        child.communicate(b"\n")
    lines: list[int] = []
    before = signal.signal(TELL, lambda number, frame: lines.append(number))
    try:
        assert "no worker that could be asked" in stacks.stack_of(os.getpid()), "this signal means something else here"
        assert not lines
    finally:
        signal.signal(TELL, before)


def test_rings_of_this_process_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_RING_MEMORY", "memfd")
    rings = Rings(os.getpid())
    assert rings.find() == []
    with shmloader.DataLoader(list(range(8)), num_workers=1) as one:
        first = iter(one)
        next(first)
        monkeypatch.setenv("SHMLOADER_RING_MEMORY", "posix")
        with shmloader.DataLoader(list(range(8)), num_workers=1) as other:
            second = iter(other)
            next(second)
            found = rings.find()
            assert len(found) == 2 and all(held.trainer == os.getpid() for held in found)
            assert len({held.key for held in found}) == 2 and len(found[0].holders) >= 2
            holding = found[1]
        assert [held.key for held in rings.find()] == [found[0].key]
        with pytest.raises(ValueError, match="closed"):
            Watched().look(holding)
    assert rings.find() == []
    del found, holding, rings, first, second


def test_who_holds_the_batch_that_is_taken_next() -> None:
    def entry(sequence: int, state: str, owner: int) -> EntryNow:
        return EntryNow(sequence, sequence % 4, state, owner, 0, sequence, 0, 0, 0, 0, 0, 0)

    lanes = [LaneView(1, 77, "fetches", 1.0, 6, 1.0, 0.0, 0, False, True)]
    ring = [
        entry(5, "ready", 0),
        entry(8, "claimed", 0),
        entry(6, "claimed", 1),
        entry(7, "open", 0),
        entry(4, "void", 0),
    ]
    awaited = view._awaited(ring)
    assert awaited is not None and awaited.sequence == 6
    assert view._who(awaited, lanes) == "batch 6, held by worker 1 (pid 77), which fetches"
    assert view._who(awaited, []) == "batch 6, held by worker 1, which is gone"
    assert view._who(entry(6, "open", 1), lanes) == "batch 6, which worker 1 has not claimed yet"
    assert view._who(entry(6, "open", -1), lanes) == "batch 6, which no worker has claimed yet"
    assert "nothing is under way" in view._who(view._awaited([entry(5, "ready", 0)]), lanes)


# -------------------------------------------------------------------------------------------------- the command line


def test_nothing_to_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert line.main(["top", str(os.getpid()), "--once", "--interval", "0"]) == 1
    assert screen.NOTHING in capsys.readouterr().out
    assert line.main(["top", str(os.getpid()), "--json", "--interval", "0"]) == 1
    assert json.loads(capsys.readouterr().out) == {"loaders": [], "stacks": {}}
    assert line.main(["top", str(1 << 30)]) == 1
    assert "there is no process" in capsys.readouterr().err


def test_it_reports_that_it_cannot_show_another_version(capsys: pytest.CaptureFixture[str]) -> None:
    fd = os.memfd_create("shmloader")
    try:
        os.ftruncate(fd, 1 << 16)
        os.pwrite(fd, struct.pack("<QI", 0x676E69726D6873, 99), 0)
        with pytest.raises(OtherVersion, match="version 99"):
            Onlooker(fd)
        line.main(["top", str(os.getpid()), "--once", "--interval", "0"])
    finally:
        os.close(fd)
    assert "of another version of shmloader" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["top", "--interval", "1e12"], ["doctor", "--batch-bytes", "0.4"]])
def test_a_number_that_is_too_large_or_too_small_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        line.main(arguments)
    assert ended.value.code == 2
    assert "is not a " in capsys.readouterr().err


def test_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert line.main(["top"]) == 1
    assert "pip install 'shmloader[tools]'" in capsys.readouterr().err


def drawn(loaders: int, workers: int, columns: int, rows: int) -> str:
    """The picture of this many loaders, each with this many workers."""
    rich = pytest.importorskip("rich.console")
    lanes = [LaneView(k, 12345, "fetches", 1.0, 6, 0.4, 9.5, 0, False, False) for k in range(workers)]
    some = {"label": "Some", "trainer": 12344, "state": "sleeps", "held_up": "", "lanes": lanes}
    loader = LoaderView(**({field.name: 0 for field in fields(LoaderView)} | some))  # type: ignore[arg-type]
    out = io.StringIO()
    rich.Console(file=out, width=columns).print(screen.picture([loader] * loaders, {}, columns, rows))
    return out.getvalue()


@pytest.mark.parametrize(
    ("columns", "shown"), [(80, screen.HEADINGS[:7]), (40, screen.HEADINGS[:5]), (30, screen.HEADINGS[:3])]
)
def test_in_few_columns_there_are_fewer_and_none_is_cut_off(columns: int, shown: tuple[str, ...]) -> None:
    text = drawn(1, 2, columns, 40)
    assert shown in [tuple(line.split()) for line in text.splitlines()] and "…" not in text, text


def test_more_than_the_terminal_has_lines_for() -> None:
    assert "too many" not in drawn(2, 8, 80, 24)
    assert drawn(2, 9, 80, 24).startswith("2 loaders, 18 workers: too many for 24 lines; --once shows all")


class Terminal:
    """A pseudo-terminal with a program in it, and what stands on its screen."""

    def __init__(self, columns: int, *command: str) -> None:
        pyte = pytest.importorskip("pyte")
        pytest.importorskip("rich")
        self.screen = pyte.Screen(columns, 40)
        self._stream = pyte.ByteStream(self.screen)
        self._at, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        for size in ("COLUMNS", "LINES"):  # which pytest-xdist tells its workers, and rich believes first
            environment.pop(size, None)
        self.process = subprocess.Popen(
            command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True, close_fds=True
        )
        os.close(end)

    def text(self) -> str:
        """What stands there now."""
        while select.select([self._at], [], [], 0)[0]:
            try:
                self._stream.feed(os.read(self._at, 65536))
            except OSError:  # the program has ended
                break
        return "\n".join(self.screen.display)

    def shows(self, what: str) -> str:
        """What stands there as soon as this does.

        Raises:
            AssertionError: The program has ended, or it is not there within a minute; with what is there.
        """
        end = time.monotonic() + 60
        while what not in (text := self.text()):
            assert self.process.poll() is None, f"it ended with status {self.process.poll()}:\n{text}"
            assert time.monotonic() < end, f"{what!r} never came:\n{text}"
            time.sleep(0.05)
        return text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._at)


@pytest.mark.parametrize("columns", [80, pytest.param(140, marks=pytest.mark.long)])
def test_in_a_terminal(columns: int) -> None:
    with training() as trainer:
        terminal = Terminal(columns, sys.executable, "-m", "shmloader", "top", str(trainer), "--interval", "0.2")
        try:
            text = terminal.shows("fetches")
            assert f"pid {trainer}" in text and "batches/s" in text and "input wait" in text, text
            pid = until(Eyes(trainer).pids)[1]
            os.kill(pid, signal.SIGSTOP)
            stopped = time.monotonic()
            text = terminal.shows("is stopped by a signal")
            lane = next(line for line in text.splitlines() if str(pid) in line and "waits for" not in line)
            assert "is stopped by a signal" in lane and "…" not in text, text  # nothing is cut off
            print(f"\na stopped worker was seen after {time.monotonic() - stopped:.2f} s")
            os.kill(pid, signal.SIGCONT)
            os.kill(terminal.process.pid, signal.SIGINT)
            assert terminal.process.wait(60) == 130
        finally:
            terminal.close()
