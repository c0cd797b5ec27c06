"""A worker that writes where it should not gives the trainer an exception, never a crash; nobody else can reach in."""

from __future__ import annotations

import errno
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import assert_same
from hostile import BothSides, entry_at, poke
from scripts import ROOT, run_script

import shmloader
from shmloader.core.batch_tree import Again
from shmloader.core.ring import FILLED
from shmloader.ring.segment import Segment
from shmloader.worker import loop

MOST = (1 << 64) - 1
BATCH = {"x": torch.arange(6.0).reshape(2, 3), "s": ["text", torch.ones(2, requires_grad=True)]}


def plan(*tokens: Any) -> bytes:
    return pickle.dumps(tokens)


# ---------------------------------------------------------------------------------------- what the trainer reads


HEADER: dict[str, tuple[Callable[[BothSides], None], str]] = {
    "used past the slot": (lambda r: r.header("used", r.segment.geometry.slot_stride + 1), "batch's size is"),
    "used past its pages": (lambda r: r.header("used", r.header_of("committed") + 1), "batch's size is"),
    "used and committed": (lambda r: (r.header("used", 1 << 62), r.header("committed", MOST)), "batch's size is"),
    "used 0": (lambda r: r.header("used", 0), "place of a leaf is .* in 0 bytes"),
    "outcome unknown": (lambda r: r.header("outcome", 7), "outcome is 7, and may be at most 1"),
    "meta past the end": (lambda r: r.header("meta_at", r.segment.geometry.area_stride - 8), "a batch's description"),
    "meta size wraps": (lambda r: r.header("meta_size", -8), "place of a batch's description"),
    "meta too short": (lambda r: r.header("meta_size", 0), "description is 0, and may be 8 or more"),
    "meta cut": (lambda r: r.header("meta_size", 24), "overwritten"),
    "meta too long": (lambda r: r.header("meta_size", r.header_of("meta_size") + 8), "number of words"),
    "table outside": (lambda r: r.header("objects_at", r.header_of("used") - 8), "table of a batch's pickled leaves"),
    "table too long": (lambda r: r.header("objects_size", MOST), "table of a batch's pickled leaves"),
    "table odd": (lambda r: r.header("objects_size", 24), "multiple of 16"),
    "part outside": (lambda r: table(r, 0, 1 << 62), "place of a pickled leaf"),
    "part too long": (lambda r: table(r, 3, (1 << 63) - 1), "place of a pickled leaf"),
    "plan cut short": (lambda r: r.header("plan_size", 5), "pickle"),
    "plan outside": (lambda r: r.header("plan_at", 1 << 31), "place of a batch's plan"),
    "leaf outside": (lambda r: meta(r, 1, 1 << 40), "place of a leaf"),
    "leaf before the slot": (lambda r: meta(r, 1, -128), "place of a leaf"),
    "ndim": (lambda r: meta(r, 2, 1 << 40), "number of dimensions"),
    "ndim of strides": (lambda r: meta(r, 2, -(1 << 40)), "number of dimensions"),
    "side": (lambda r: meta(r, 3, 1 << 40), "place of a leaf"),
    "side negative": (lambda r: meta(r, 3, -1), "side of a leaf is -1"),
}


def meta(ring: BothSides, word: int, value: int) -> None:
    poke(ring.segment, ring.area_at(ring.header_of("meta_at") + 8 * word), 8, value)


def table(ring: BothSides, word: int, value: int) -> None:
    poke(ring.segment, ring.slot_at(ring.header_of("objects_at") + 8 * word), 8, value)


@pytest.mark.parametrize(("overwrite", "says"), HEADER.values(), ids=HEADER)
def test_a_batch_whose_words_were_overwritten(overwrite: Callable[[BothSides], None], says: str) -> None:
    with BothSides() as ring:
        for _ in range(4):  # more than there are slots: what failed holds none
            ring.fill(BATCH)
            overwrite(ring)
            with pytest.raises(Exception, match=says) as caught:
                ring.take()
            assert "overwritten" in str(caught.value) or says == "pickle"
            assert ring.trainer.slots.lent == 0
            ring.header("committed", 1 << 14)
        ring.fill([7, "next"])
        assert ring.take() == [7, "next"]


F32, BF16, I64 = torch.float32, torch.bfloat16, numpy.dtype("int64")
LEAVES: dict[str, tuple[list[int], Any, str]] = {
    "strides past the end": ([0, ~1, 4, 100], F32, "place of a leaf is 0, of 1204 bytes, and may be in 64 bytes"),
    "strides past the end, of an array": ([0, ~1, 4, 2], I64, "strides reach over is 7"),
    "overlaps of an array": ([0, ~2, 4, 2, 1, 1], I64, "strides reach over is 5, and may be 8"),
    "a view past the end": ([32, ~2, 8, 2, 1, 1], F32, "place of a leaf is 32, of 36 bytes"),
    "a view before the slot": ([-4, ~2, 4, 2, 1, 1], F32, "place of a leaf is -4, of 20 bytes"),
    "a view with a negative stride": ([16, ~2, 4, 2, 1, -1], F32, "stride of a leaf is -1"),
    "strides that wrap": ([0, ~1, 5, 1 << 62], I64, "strides reach over"),
    "strides that all are 0": ([0, ~2, 1 << 40, 1 << 40, 0, 0], BF16, "number of elements of a leaf"),
    "strides missing": ([0, ~2, 2, 2, 1], F32, "number of dimensions is 2, and may be at most 1"),
    "a product that wraps": ([0, 2, 1 << 32, 1 << 32], F32, "place of a leaf"),
    "no dtype of torch's": ([0, 1, 4], numpy.dtype("O"), "dtype of a leaf is object"),
    "a word too many": ([0, 1, 4, 4], F32, "number of words"),
    "a leaf missing": ([], F32, "number of words"),
}


@pytest.mark.parametrize(("words", "dtype", "says"), LEAVES.values(), ids=LEAVES)
def test_a_leaf_that_is_nowhere(words: list[int], dtype: Any, says: str) -> None:
    with BothSides() as ring:
        ring.words(words, plan(dtype))
        with pytest.raises(RuntimeError, match=f"overwritten.*{says}"):
            ring.take()


SAME: dict[str, tuple[tuple[Any, ...], str]] = {
    "nothing": (((list, 2), (Again, 0), F32), "leaf that was met before is 0, and may be below 0"),
    "itself": (((list, 2), F32, (Again, 1)), "leaf that was met before is 1, and may be below 1"),
    "one after all": (((list, 2), F32, (Again, 1 << 70)), "leaf that was met before is"),
    "no number": (((list, 2), F32, (Again, "0")), "not supported between"),
    "with a leaf of its own": (((list, 2), F32, (Again, 0), F32), "length of a plan is 4, and may be at most 3"),
    "elements in a class": (((list, 2), (torch.nn.Parameter, ("a",)), F32, (Again, 0), None), "object|subscriptable"),
    "lists in lists": (((list, 1),) * 100_000 + (F32,), "depth of a plan is 502, and may be at most 501"),
    "a dict without keys": (((dict, 1), F32), "not iterable"),
    "no pair": (((list, 2, 3), F32), "too many values"),
    "no tuple": (([list, 1], F32), "token of a plan is"),
}


@pytest.mark.parametrize(("tokens", "says"), SAME.values(), ids=SAME)
def test_a_plan_that_walk_does_not_make(tokens: Any, says: str) -> None:
    with BothSides() as ring:
        for _ in range(3):
            ring.words([0, 1, 4] if F32 in tokens else [], plan(*tokens))
            with pytest.raises((RuntimeError, IndexError, TypeError, ValueError, AttributeError), match=says):
                ring.take()
        ring.fill(BATCH)
        assert_same(ring.take(), BATCH)


def test_a_shorter_slot_of_the_same_description() -> None:
    """What was worked out for a description is believed again only where the batch is as long."""
    with BothSides() as ring:
        for _ in range(2):  # it is kept the second time
            ring.fill(torch.arange(30.0))
            assert_same(ring.take(), torch.arange(30.0))
        ring.fill(torch.arange(30.0))
        ring.header("used", 100)
        with pytest.raises(RuntimeError, match="place of a batch's leaves is 0, of 120 bytes, and may be in 100 bytes"):
            ring.take()


def test_the_trainer_does_not_read_back_what_it_wrote() -> None:
    with BothSides() as ring:
        for payload in (0, 1, 99, -1):
            ring.fill(BATCH)
            for entry in range(2):
                ring.entry("payload", payload, entry)
            assert_same(ring.take(), BATCH)


def half(value: float, *names: str) -> Any:
    return {"x": torch.full((2, 3), float(value)), "y": torch.zeros(2, 8), "s": list(names)}


CHUNKS = {
    "a shape of its own": (lambda r: meta(r, 4, 2), "equal size, but got .3. at entry 0 and .2. at entry 2"),
    "rows outside": (lambda r: meta(r, 1, 1 << 40), "place of a leaf"),
    "rows elsewhere": (lambda r: meta(r, 1, 64), "laid out alike, but .* lies at 0 .* and at 64"),
    "objects outside": (lambda r: r.header("objects_at", -8), "place of a chunk's pickled leaves"),
    "objects too long": (lambda r: r.header("objects_size", MOST), "place of a chunk's pickled leaves"),
    "plan outside": (lambda r: (meta(r, 0, 5), r.header("plan_at", 1 << 31)), "place of a batch's plan"),
    "outcome unknown": (lambda r: r.header("outcome", 7), "outcome is 7"),
    "used past its pages": (lambda r: r.header("used", 1 << 62), "batch's size is"),
}


@pytest.mark.parametrize(("overwrite", "says"), CHUNKS.values(), ids=CHUNKS)
def test_a_chunk_whose_words_were_overwritten(overwrite: Callable[[BothSides], Any], says: str) -> None:
    with BothSides() as ring:
        for _ in range(4):
            ring.fill_chunks([half(1, "a", "b"), half(2, "c", "d")], 2)
            overwrite(ring)
            with pytest.raises(RuntimeError, match=says):
                ring.take()
            assert ring.trainer.slots.lent == 0
        ring.fill_chunks([half(1, "a", "b"), half(2, "c", "d")], 2)
        rows = torch.tensor([[1.0] * 3] * 2 + [[2.0] * 3] * 2)
        assert_same(ring.take(), {"x": rows, "y": torch.zeros(4, 8), "s": ["a", "b", "c", "d"]})


@pytest.mark.parametrize(("row", "rows"), [(3, 4), (0, 1), ((1 << 32) - 1, 4)])
def test_rows_that_are_not_in_the_batch(row: int, rows: int) -> None:
    with BothSides() as ring:
        ring.trainer.open_chunks([0, 0], [[1, 2], [3, 4]])
        ring.entry("row", row)
        ring.entry("rows", rows)
        ring.claim_again()
        with pytest.raises(RuntimeError, match=r"overwritten: a chunk's rows is \d+ to \d+, and may be in \d"):
            ring.writer.begin(2)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("word", [0, MOST, 1 << 24 | 3, 7 << 24 | 3, 1 << 8 | 1, 4])
def test_a_sequence_that_never_was(in_order: bool, word: int) -> None:
    with BothSides(in_order) as ring:
        ring.fill(BATCH)
        ring.entry("word", word)
        with pytest.raises(RuntimeError, match="overwritten"):
            assert ring.trainer.wait(5)
            ring.trainer.take()
        assert ring.trainer.slots.lent == 0


# ------------------------------------------------------------------------------------------- what a worker reads


TASKS = {
    "payload": (99, "task's payload is 99, and may be at most 4"),
    "task_kind": (5, "task's kind is 5, and may be 0 to 4"),
    "task_size": (1 << 31, "task's size is"),
}


@pytest.mark.parametrize(("name", "value", "says"), [(name, *rest) for name, rest in TASKS.items()])
@pytest.mark.parametrize("task", [3, [1, 2], b"pickled", numpy.int64(3), list(numpy.arange(2))], ids=repr)
def test_a_task_that_was_overwritten(name: str, value: int, says: str, task: Any) -> None:
    with BothSides() as ring:
        ring.trainer.open(0, task)
        ring.entry(name, value)
        with pytest.raises(RuntimeError, match=says):
            ring.worker.claim()


def test_more_pages_than_a_slot_has() -> None:
    with BothSides() as ring:
        ring.fill(BATCH)
        ring.header("committed", MOST)
        ring.take()
        ring.trainer.open(0, 1)
        with pytest.raises(RuntimeError, match="payload's size is 18446744073709551615"):
            ring.worker.claim()


WRAPS = (1 << 29, (1 << 29) + 1, MOST)  # of 8 bytes each, in a word of 32 bits


@pytest.mark.parametrize(("name", "value"), [*(("task_size", size) for size in WRAPS), ("task_kind", 2)])
def test_a_task_that_was_overwritten_while_it_was_done(name: str, value: int) -> None:
    """What the worker says of the batch goes behind the task as it was claimed, which a successor may need."""
    with BothSides() as ring:
        for _ in range(2):
            ring.claim([1, 2, 3])
            ring.entry(name, value, ring.filled)
            ring.writer.write(BATCH)
            ring.worker.publish(FILLED)
            assert ring.header_of("meta_at") == 24
            assert os.pread(ring.segment.fd, 24, ring.area_at(0)) == struct.pack("3q", 1, 2, 3)
            assert_same(ring.take(), BATCH)


# ------------------------------------------------------------------------------------------------ a whole loader


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((5,), index)


@pytest.mark.parametrize("in_order", [True, False])
def test_the_error_comes_at_the_batchs_place(monkeypatch: pytest.MonkeyPatch, in_order: bool) -> None:
    fill = loop.Worker._fill
    done: list[int] = []  # in each worker a list of its own

    def scribble(worker: Any, task: Any) -> int:
        outcome = fill(worker, task)
        done.append(worker._ring.sequence)
        if worker._ring.me == 1 and len(done) == 2:
            entry = worker._ring.sequence % worker._segment.geometry.entries
            words = entry_at(worker._segment, entry, "meta_at")[0]
            os.pwrite(worker._segment.fd, struct.pack("2I", *2 * [MOST % (1 << 32)]), words)
        return outcome

    monkeypatch.setattr(loop.Worker, "_fill", scribble)
    loader = shmloader.DataLoader(
        Numbers(), num_workers=2, in_order=in_order, multiprocessing_context="fork", spare_slots=0
    )
    iterator = iter(loader)
    got: list[Any] = []
    for _ in range(12):
        try:
            got.append(next(iterator)[0, 0].item())
        except RuntimeError as error:
            got.append(
                "error"
                if f"overwritten: the place of a batch's description is {MOST % (1 << 32)}" in str(error)
                else error
            )
    if in_order:
        assert got == [k if k != 3 else "error" for k in range(12)]
    assert got.count("error") == 1 and len(set(got)) == 12
    with pytest.raises(StopIteration):
        next(iterator)
    loader.close()


def scribbling(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Workers overwrite the word of sequence 5 while it is claimed; gives an event that says when."""
    scribbled = torch.multiprocessing.get_context("fork").Event()
    fill = loop.Worker._fill

    def scribble(worker: Any, task: Any) -> int:
        outcome = fill(worker, task)
        if worker._ring.sequence == 5:
            os.pwrite(worker._segment.fd, bytes(8), entry_at(worker._segment, 5 % 4, "word")[0])
            scribbled.set()
        return outcome

    monkeypatch.setattr(loop.Worker, "_fill", scribble)
    return scribbled


OVERWRITTEN = "overwritten: the word of sequence 5 is 0x0"


def test_a_claim_that_was_overwritten_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    scribbling(monkeypatch)
    got, errors = [], []
    with shmloader.DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork") as loader:
        iterator = iter(loader)
        while len(errors) < 3:  # and not before its turn, unless worker 0 might have stopped at it
            try:
                got.append(next(iterator)[0, 0].item())
            except RuntimeError as error:
                errors.append(str(error))
    assert all(OVERWRITTEN in error for error in errors)
    assert got == list(range(len(got))) and 2 <= len(got) <= 5


@pytest.mark.long
def test_a_spawned_worker_of_another_version_reports_it() -> None:
    ran = run_script(
        """
        import shmloader
        from shmloader.core.ring import HEADER_BYTES
        from shmloader.ring.segment import Segment
        import os

        class Other(Segment):
            def format(self, ring, label=b""):
                super().format(ring, label)
                os.pwrite(self.fd, (1).to_bytes(4, "little"), 8)

        if __name__ == "__main__":
            shmloader.trainer.iterator.Segment = Other
            try:
                list(shmloader.DataLoader([1, 2], num_workers=1, multiprocessing_context="spawn"))
            except RuntimeError as error:
                print(error)
        """
    )
    text = r"this is not a ring of version \d+: magic 0x676e69726d6873, version 1; trainer and worker must run"
    assert re.search(text, ran.err), ran.err
    assert "exited unexpectedly" in ran.out


# ------------------------------------------------------------------------------------------------ other processes


def test_no_other_process_can_find_the_memory() -> None:
    before = set(os.listdir("/dev/shm"))
    segment = Segment(1, 2, 2, 2, "posix", None, False)
    try:
        found = os.fstat(segment.fd)
        assert (found.st_mode & 0o777, found.st_nlink, found.st_uid) == (0o600, 0, os.getuid())
        name = os.readlink(f"/proc/self/fd/{segment.fd}")
        assert name.startswith("/dev/shm/") and name.endswith(" (deleted)")
        listing = subprocess.run(["ls", "-A", "/dev/shm"], capture_output=True, text=True, check=True).stdout.split()
        assert Path(name.removesuffix(" (deleted)")).name not in listing
        assert not Path(name.removesuffix(" (deleted)")).exists()
        assert Path(name.removesuffix(" (deleted)")).name not in before
    finally:
        segment.close()


def refuse_nameless(*arguments: Any, **options: Any) -> Any:
    """os.open, where there is no O_TMPFILE."""
    if arguments[1] & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    return real_open(*arguments, **options)


real_open = os.open


def test_where_the_mount_knows_no_nameless_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", refuse_nameless)
    test_no_other_process_can_find_the_memory()


KILLED = """
import os, signal, posix_ipc
from shmloader.ring.segment import Segment

def killed_after(make):
    def made(*arguments, **options):
        found = make(*arguments, **options)
        if arguments[0] is None or str(arguments[0]).startswith("/dev/shm"):
            print(os.fstat(getattr(found, "fd", found)).st_ino, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return made

os.open, posix_ipc.SharedMemory = killed_after(os.open), killed_after(posix_ipc.SharedMemory)
Segment(1, 2, 2, 2, "MEMORY", None, False)
"""


@pytest.mark.long
@pytest.mark.parametrize("memory", ["posix", "auto"])
def test_killed_at_the_moment_of_creation_it_leaves_no_name(memory: str) -> None:
    ran = run_script(KILLED.replace("MEMORY", memory))
    assert ran.status == -signal.SIGKILL, ran.err
    left = [entry.name for entry in os.scandir("/dev/shm") if entry.inode() == int(ran.out)]
    for name in left:
        os.unlink(f"/dev/shm/{name}")
    assert not left


# ---------------------------------------------------------------------------------------------------------- fuzz


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.long)])
def test_whatever_is_overwritten_is_no_crash(seconds: int) -> None:
    """In a process of its own, so that a crash fails here; its last line is then what it died of."""
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", str(ROOT / "tests" / "hostile.py"), str(seconds)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, f"{ran.returncode}\n{ran.stdout[-500:]}\n{ran.stderr[-3000:]}"
    assert ran.stdout.endswith(" batches were read\n")
