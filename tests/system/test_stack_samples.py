"""SHMLOADER_DETAIL=1: the function that takes the most has a name and a line."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import iterate

import shmloader
from shmloader.system import stack_samples
from shmloader.system.stack_samples import MOST, PERIOD, SAMPLE, Counts, Sampler, SampleSheet, user_line_of

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")

HERE = Path(__file__).name
PACKAGE = Path(shmloader.__file__).parent
LIBRARY = Path(torch.__file__).parent.parent
STDLIB = Path(os.__file__).parent


def slow_read() -> None:
    time.sleep(0.04)


class Slow(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        slow_read()
        return torch.tensor([index])


def frames(*calls: str) -> Any:
    """What a handler gets, of calls like "/home/me/dataset.py:41 __getitem__", the innermost first."""
    frame = None
    for call in reversed(calls):
        file, line, function = re.fullmatch(r"(.*):(\d+) (.*)", call).groups()  # type: ignore[union-attr]
        code = types.SimpleNamespace(co_filename=file, co_name=function, co_firstlineno=1)
        frame = types.SimpleNamespace(f_code=code, f_lineno=int(line), f_back=frame)
    return frame


@pytest.mark.parametrize(
    ("calls", "counted"),
    [
        (
            (
                f"{LIBRARY}/PIL/ImageFile.py:300 load",
                f"{LIBRARY}/PIL/Image.py:995 convert",
                "/home/me/dataset.py:41 __getitem__",
                f"{PACKAGE}/worker/fetch.py:79 fetch",
                "/home/me/train.py:7 <module>",
            ),
            ("PIL.Image.convert", "/home/me/dataset.py", 41),
        ),
        (
            ("/home/me/dataset.py:44 noise", "/home/me/dataset.py:42 __getitem__", f"{PACKAGE}/worker/loop.py:9 _fill"),
            ("noise", "/home/me/dataset.py", 44),
        ),
        (
            (f"{PACKAGE}/batch/objects.py:9 dump", f"{PACKAGE}/worker/loop.py:79 _fill"),
            ("shmloader, writing into the slot", "", 0),
        ),
        (
            (
                f"{STDLIB}/random.py:5 uniform",
                f"{LIBRARY}/torchvision/datasets/folder.py:250 __getitem__",
                f"{PACKAGE}/worker/fetch.py:79 fetch",
            ),
            ("random.uniform", f"{STDLIB}/random.py", 5),
        ),
        (
            (
                f"{PACKAGE}/images/decode.py:12 decode",
                "/home/me/dataset.py:50 __getitem__",
                f"{PACKAGE}/worker/fetch.py:79 fetch",
            ),
            ("shmloader.images.decode.decode", "/home/me/dataset.py", 50),
        ),
    ],
    ids=["of a library", "the user's", "ours", "of a library alone", "of our images"],
)
def test_what_a_stack_is_counted_as(calls: tuple[str, ...], counted: tuple[str, str, int]) -> None:
    assert user_line_of(frames(*calls)) == counted


def test_a_sheet_tells_what_was_written_whole() -> None:
    sheet = SampleSheet(2)
    try:
        assert sheet.total() == (Counts(), 0)
        sheet.write(0, Counts({("f", "a.py", 3): 5}), 6)
        sheet.write(1, Counts({("f", "a.py", 3): 1, ("g", "b.py", 1): 2}), 3)
        assert sheet.total() == (Counts({("f", "a.py", 3): 6, ("g", "b.py", 1): 2}), 9)
        os.pwrite(sheet._fd, b"x", 20)  # half written
        assert sheet.read(0) == (Counts(), 0) and sheet.total()[1] == 3
        many = Counts({(f"f{k}", "/a/long/path" * 60, k): k + 1 for k in range(MOST)})
        sheet.write(0, many, 7)
        counts, samples = sheet.read(0)
        assert samples == 7 and 20 < len(counts) < MOST and counts.most_common(1)[0][1] == MOST
    finally:
        sheet.close()
        sheet.close()
    assert sheet.closed


@pytest.fixture
def detail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_DETAIL", "1")


@pytest.mark.usefixtures("detail")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_slowest_function_has_a_name_and_a_line(start: str) -> None:
    loader = shmloader.DataLoader(Slow(), num_workers=1, multiprocessing_context=start)
    iterator = iter(loader)
    next(iterator)
    next(iterator)  # the first one has been published, and its samples behind that
    living = loader.stats().hot
    del iterator
    stats = loader.stats()
    for hot in (living, stats.hot):
        assert hot is not None and hot[0].function == "slow_read" and Path(hot[0].file).name == HERE
        line = Path(__file__).read_text().splitlines()[hot[0].line - 1]
        assert re.search("time.sleep", line) and hot[0].share > 0.5
    assert f"in slow_read, {hot[0].file}:{hot[0].line}" in " ".join(str(loader.report()).split())  # on one line


class NoTimer:
    def __init__(self, number: int) -> None:
        pass

    def start(self, first: int, period: int) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
    """In its first batch, on a clock that stands; it begins to be due `_first` nanoseconds after 0."""
    monkeypatch.setattr(stack_samples, "StackTimer", NoTimer)
    monkeypatch.setattr(stack_samples, "time", types.SimpleNamespace(monotonic_ns=lambda: 0))
    before = signal.getsignal(SAMPLE)
    sheet = SampleSheet(1)
    sampler = Sampler(sheet, 0)
    sampler.begin()
    yield sampler
    signal.signal(SAMPLE, before)
    sheet.close()


def test_a_long_call_of_c_counts_as_long_as_it_was(sampler: Sampler) -> None:
    """Python's handler comes once, when it is over, however often the timer has run out."""
    first = sampler._first
    for now, function in ((0, "before"), (first + 5 * PERIOD, "long"), (first + 6 * PERIOD, "short")):
        stack_samples.time.monotonic_ns = lambda now=now: now
        sampler._sample(SAMPLE, frames(f"/home/me/dataset.py:3 {function}"))
        sampler._sample(SAMPLE, frames("/home/me/dataset.py:4 at_once"))
    sampler.end()
    file = "/home/me/dataset.py"
    assert sampler._sheet.read(0) == (Counts({("long", file, 3): 6, ("short", file, 3): 1}), 7)
    sampler._sample(SAMPLE, frames("/home/me/dataset.py:5 late"))
    assert sampler._counts.total() == 7


def test_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = shmloader.DataLoader(Slow(), num_workers=1)
    iterate(loader)
    assert loader.stats().hot is None
    monkeypatch.setenv("SHMLOADER_DETAIL", "1")
    loader = shmloader.DataLoader([1, 2])
    iterate(loader)
    assert any(
        "SHMLOADER_DETAIL=1 has no effect: it samples the workers" in note for note in loader.report().verdict.notes
    )
    monkeypatch.setattr(stack_samples, "EVERY", 1)  # as if no sample ever came
    loader = shmloader.DataLoader([1, 2], num_workers=1)
    iterate(loader)
    assert any("while the dataset blocks all signals" in note for note in loader.report().verdict.notes)
    loader = shmloader.DataLoader([1, 2], num_workers=1)
    batches = iter(loader)
    next(batches)
    assert any("while the dataset blocks all signals" in note for note in loader.report().verdict.notes), "alive"
    del batches


def test_a_look_does_not_disturb_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batches, though signals come all the time; the user's own handlers and timers are left alone."""
    monkeypatch.setattr(stack_samples, "PERIOD", 4_000_000)
    monkeypatch.setattr(stack_samples, "EVERY", 2)

    class Draws(Slow):
        def __getitem__(self, index: int) -> Any:
            assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL)[0] == 0
            return torch.rand(1000).sort()[0][:3], sum(range(200_000))

    handler = signal.getsignal(signal.SIGALRM)
    outcomes = []
    for detail in "01":
        monkeypatch.setenv("SHMLOADER_DETAIL", detail)
        torch.manual_seed(3)
        loader = shmloader.DataLoader(Draws(), num_workers=2, multiprocessing_context="fork")
        outcomes.append([(batch[0].tolist(), batch[1].tolist()) for batch in iterate(loader)])
    assert outcomes[0] == outcomes[1] and len(outcomes[0]) == 6
    assert loader.stats().hot


class Ends(torch.utils.data.Dataset):
    """It ends its worker while a look is due, whose frames outlive the loop, and takes its time then."""

    kept: ClassVar[list[Any]] = []

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        self.kept += sys._getframe(), self
        sys.exit(3)

    def __del__(self, sleep: Any = time.sleep) -> None:
        sleep(0.05)


@pytest.mark.usefixtures("detail")
def test_a_worker_that_exits_is_not_killed_by_its_timer() -> None:
    """When the interpreter of a spawned worker ends, it resets the handlers of signals."""
    loader = shmloader.DataLoader(Ends(), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(RuntimeError, match="exited unexpectedly with exit code 3"):
        next(iter(loader))


def no_timers(worker: int) -> None:
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))


@pytest.mark.usefixtures("detail")
def test_a_worker_that_gets_no_timer_reports_it() -> None:
    loader = shmloader.DataLoader(Slow(), num_workers=1, worker_init_fn=no_timers)
    with pytest.raises(OSError, match=r"RLIMIT_SIGPENDING\)\. Raise it \(`ulimit -i`\), or unset it"):
        next(iter(loader))
