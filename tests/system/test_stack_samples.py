"""SHMLOADER_DETAIL=1: the function that takes the most has a name and a line."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import iterate

import shmloader
from shmloader.statistics.account import Account, account_of
from shmloader.system import stack_samples
from shmloader.system.stack_samples import EVERY, MOST, PERIOD, Counts, Sampler, SampleSheet, user_line_of

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


@pytest.fixture
def sampler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampler]:
    """Its thread does nothing."""
    monkeypatch.setattr(Sampler, "run", lambda self: None)
    interval = sys.getswitchinterval()
    sheet = SampleSheet(1)
    yield Sampler(sheet, 0)
    sys.setswitchinterval(interval)
    sheet.close()


def test_only_one_batch_of_sixteen_is_looked_at(sampler: Sampler) -> None:
    due = []
    for _ in range(2 * EVERY + 1):
        sampler.begin()
        due.append(sampler._is_due.is_set())
        sampler.end()
    assert [number for number, is_due in enumerate(due) if is_due] == [0, EVERY, 2 * EVERY]


def test_what_is_counted_between_begin_and_end(sampler: Sampler) -> None:
    sampler.begin()
    sampler._count(frames("/home/me/dataset.py:3 long"), 6)
    sampler._count(frames("/home/me/dataset.py:3 short"), 1)
    sampler.end()
    file = "/home/me/dataset.py"
    assert sampler._sheet.read(0) == (Counts({("long", file, 3): 6, ("short", file, 3): 1}), 7)
    sampler._count(frames("/home/me/dataset.py:5 late"), 1)
    assert sampler._counts.total() == 7


def test_a_long_call_of_c_counts_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread gets the GIL once, when it is over, however many periods have passed."""
    seen: list[int] = []
    clock = iter([0, 7 * PERIOD, 8 * PERIOD])
    fake = types.SimpleNamespace(monotonic_ns=lambda: next(clock), sleep=lambda seconds: None)
    sampler = Sampler.__new__(Sampler)
    sampler._random, sampler._sampled, sampler._is_due = random.Random(0), 0, threading.Event()
    sampler._is_due.set()

    def count(frame: Any, times: int) -> None:
        seen.append(times)
        if len(seen) == 2:
            sampler._is_due.clear()
            raise SystemExit

    sampler._count = count  # type: ignore[method-assign]
    monkeypatch.setattr(stack_samples, "time", fake)
    with pytest.raises(SystemExit):
        sampler.run()
    assert seen == [7, 1]


def test_below_the_users_line_nobody_looks() -> None:
    """Their code may be 100,000 calls deep, and a look must take less than the time to the next one."""
    frame = frames(f"{STDLIB}/copy.py:5 deepcopy", "/home/me/dataset.py:41 __getitem__")
    del frame.f_back.f_back  # it would raise
    assert user_line_of(frame) == ("copy.deepcopy", "/home/me/dataset.py", 41)


def test_asked_while_a_ring_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a thread of metrics may: the sheet was open when it was looked for."""
    account, sheet = Account(1), SampleSheet(1)
    account.add_sheet(sheet)
    sheet.close()
    monkeypatch.setattr(SampleSheet, "closed", False)
    assert account.hot() == ()
    another = os.open(os.devnull, os.O_RDONLY)
    try:
        monkeypatch.setattr(sheet, "_fd", another)
        assert account.hot() == ()
    finally:
        os.close(another)


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
    assert any("has no samples yet" in note for note in loader.report().verdict.notes)
    loader = shmloader.DataLoader([1, 2], num_workers=1)
    batches = iter(loader)
    next(batches)
    assert any("has no samples yet" in note for note in loader.report().verdict.notes), "alive"
    del batches


def test_for_all_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_DETAIL", "1")
    loader = shmloader.DataLoader(Slow(), num_workers=1)
    iterate(loader)
    assert loader.stats().hot is not None
    monkeypatch.setenv("SHMLOADER_DETAIL", "0")
    loader = shmloader.DataLoader(Slow(), num_workers=1)
    iterate(loader)
    assert loader.stats().hot is None


def test_a_look_does_not_disturb_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batches; the user's own handlers and timers are left alone."""
    monkeypatch.setattr(stack_samples, "PERIOD", 4_000_000)
    monkeypatch.setattr(stack_samples, "EVERY", 2)

    class Draws(Slow):
        def __getitem__(self, index: int) -> Any:
            assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL)[0] == 0
            return torch.rand(1000).sort()[0][:3], sum(range(1_500_000))

    handler = signal.getsignal(signal.SIGALRM)
    outcomes = []
    for detail in "01":
        monkeypatch.setenv("SHMLOADER_DETAIL", detail)
        torch.manual_seed(3)
        loader = shmloader.DataLoader(Draws(), num_workers=2, multiprocessing_context="fork")
        outcomes.append([(batch[0].tolist(), batch[1].tolist()) for batch in iterate(loader)])
    assert outcomes[0] == outcomes[1] and len(outcomes[0]) == 6
    assert loader.stats().hot


class Busy(torch.utils.data.Dataset):
    """What makes and drops frames all the time, and so has them half made at any."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return sum(self.part(number) for number in range(4000)) + index

    def part(self, number: int) -> int:
        return sum(map(self.more, self.each(number)))

    def more(self, each: int) -> int:
        return each + 1

    def each(self, number: int) -> Any:
        for k in range(5):
            yield k * number


@pytest.mark.usefixtures("detail")
def test_samples_that_come_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """With faulthandler, workers died of one look in 20 to 200, in a segmentation fault."""
    monkeypatch.setattr(stack_samples, "PERIOD", 100_000)
    monkeypatch.setattr(stack_samples, "EVERY", 2)
    loader = shmloader.DataLoader(Busy(), num_workers=1, multiprocessing_context="fork")
    expected = [Busy()[index] for index in range(4)]
    assert [int(batch) for batch in loader] == expected
    counts, samples = account_of(loader)._counts, account_of(loader)._samples
    assert samples >= 20 and sum(counts.values()) == samples
    assert {function for function, _, _ in counts} & {"part", "more", "each", "<genexpr>"}
