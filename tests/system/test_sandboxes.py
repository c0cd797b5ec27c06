"""Sandboxes that refuse a system call, or have no /proc: loaders ride the ring there, or an error names the call."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

import pytest
import sandbox
from hostile import BothSides
from scripts import run_script

from shmloader.ring import segment
from shmloader.system import anonymous_files

CALLS = [
    "pidfd_open",
    "memfd_create",
    "eventfd2",
    "fallocate",
    "ftruncate",
    "sched_getaffinity",
    "prctl",
    "madvise",
]
REFUSING = pytest.mark.skipif(not sandbox.KNOWS, reason="the numbers of this machine's system calls are not known here")
METHODS = pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.long)])

START = """
import errno, os, signal, sys, time, torch, shmloader
import sandbox

class Data(torch.utils.data.Dataset):
    def __init__(self): self.table = list(range(24))
    def __len__(self): return 24
    def __getitem__(self, k): return torch.full((20_000,), self.table[k], dtype=torch.uint8)

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        me = torch.utils.data.get_worker_info().id
        yield from (torch.full((20_000,), k, dtype=torch.uint8) for k in range(me, 24, 2))

def epochs(data, memory="auto", **options):
    os.environ["SHMLOADER_RING_MEMORY"] = memory
    loader = shmloader.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context=METHOD, **options)
    assert loader.rides_ring
    for _ in range(2):
        rows = [row for batch in loader for row in batch]
        assert all(bool((row == row[0]).all()) for row in rows)
        assert sorted(int(row[0]) for row in rows) == list(range(24)), options
    loader.close()

def all_kinds():
    epochs(Data())
    epochs(shmloader.freeze(Data()), persistent_workers=True, on_worker_death="respawn", memory="memfd")
    if METHOD == "fork":  # the others differ in the ring, and not in how workers start
        epochs(Data(), schedule="steal", memory="posix")
        epochs(Data(), chunk_size=1)
        epochs(Stream(), in_order=False, timeout=60)

if __name__ == "__main__":
"""


def run(method: str, lines: str) -> Any:
    text = START.replace("METHOD", repr(method)) + "".join(f"    {line}\n" for line in lines.strip().splitlines())
    ran = run_script(text)
    if ran.out == "not permitted\n":
        pytest.skip("this user may not mount")
    assert ran.status == 0, ran.err
    return ran


@REFUSING
@METHODS
@pytest.mark.parametrize("error", ["EPERM", pytest.param("ENOSYS", marks=pytest.mark.long)])
@pytest.mark.parametrize("call", CALLS)
def test_a_refused_system_call(call: str, error: str, method: str) -> None:
    ran = run(method, f"sandbox.refuse(errno.{error}, {call!r})\nall_kinds()\nprint('trained')")
    assert ran.out == "trained\n" and "Warning" not in ran.err, ran.err


@REFUSING
@METHODS
@pytest.mark.parametrize("error", ["EPERM", "EACCES"])
def test_all_of_them(error: str, method: str) -> None:
    run(method, f"sandbox.refuse(errno.{error}, *{CALLS})\nall_kinds()")


@REFUSING
def test_detail_where_files_get_no_size() -> None:
    lines = """
sandbox.refuse(errno.EPERM, "ftruncate")
os.environ["SHMLOADER_DETAIL"] = "1"
epochs(Data())
print("trained")
"""
    assert run("fork", lines).out == "trained\n"


@REFUSING
@METHODS
def test_workers_still_end_with_their_trainer(method: str) -> None:
    """run_script() fails if one is left, and gives them two seconds."""
    run(
        method,
        """
sandbox.refuse(errno.EPERM, "prctl", "pidfd_open")
trainer = os.fork()
if not trainer:
    iterator = iter(shmloader.DataLoader(Data(), num_workers=2, multiprocessing_context=METHOD))
    next(iterator)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(trainer, 0)
""".replace("METHOD", repr(method)),
    )


@REFUSING
@METHODS
def test_a_workers_death_is_still_seen(method: str) -> None:
    ran = run(
        method,
        """
sandbox.refuse(errno.EPERM, "prctl", "pidfd_open", "eventfd2")
for respawn in ("respawn", "raise"):
    loader = shmloader.DataLoader(Data(), num_workers=2, multiprocessing_context=METHOD, on_worker_death=respawn)
    iterator = iter(loader)
    got = [next(iterator)[0, 0].item()]
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    try:
        got += [batch[0, 0].item() for batch in iterator]
        assert got == list(range(24))
        print("replaced")
    except RuntimeError as error:
        print("raised", "exited unexpectedly" in str(error) or "is killed by signal" in str(error))
""".replace("METHOD", repr(method)),
    )
    assert ran.out == "replaced\nraised True\n"


@REFUSING
def test_a_small_dev_shm_that_the_ring_cannot_leave() -> None:
    ran = run(
        "fork",
        """
from conftest import mount_small_shm
mount_small_shm("16m")
sandbox.refuse(errno.EPERM, "memfd_create")
big = [torch.full((5_000_000,), k, dtype=torch.uint8) for k in range(6)]
for memory in ("auto", "memfd"):
    os.environ["SHMLOADER_RING_MEMORY"] = memory
    try: list(shmloader.DataLoader(big, batch_size=None, num_workers=2))
    except MemoryError as error: print(error)
""",
    )
    assert ran.out.count("slots x 4.8 MiB") == 2 and ran.out.count("memfd_create is refused here") == 2, ran.out
    assert ran.out.count("Use a larger /dev/shm (docker run --shm-size), because") == 2, ran.out


@METHODS
def test_no_proc(method: str) -> None:
    run(method, "sandbox.hide_proc()\nall_kinds()\nos.environ['SHMLOADER_DETAIL'] = '1'\nepochs(Data())")


# ------------------------------------------------------------------------------------------------ the other ways


def refuses(*_: Any) -> Any:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("memory", ["posix", "memfd"])
def test_a_slot_grows_around_what_lies_in_it(monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuses)
    with BothSides(memory=memory) as ring:
        ring.claim()
        at = ring.worker.allocate(1_000_000)
        ring.worker.write(at, b"\0\1" * 500_000)
        ring.worker.allocate(30_000_000)
        held = os.pread(ring.segment.fd, 1_000_000, ring.worker.slot_at + ring.payload * ring.worker.slot_stride + at)
        assert held == b"\0\1" * 500_000
        assert os.fstat(ring.segment.fd).st_blocks * 512 > ring.worker.committed(ring.payload) > 30_000_000


def test_holes_between_pages_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 4096
    monkeypatch.setattr(os, "posix_fallocate", refuses)
    fd = anonymous_files.memory("holes")
    try:
        anonymous_files.set_size(fd, 64 * page)
        for at in (3, 4, 17):
            os.pwrite(fd, b"x", at * page + 5)
        anonymous_files.allocate(fd, 2 * page, 40 * page)
        assert os.fstat(fd).st_blocks * 512 == 40 * page
        assert [os.pread(fd, 6, at * page) for at in (3, 4, 17)] == [b"\0\0\0\0\0x"] * 3
        anonymous_files.allocate(fd, 0, 64 * page)
        assert os.fstat(fd).st_blocks * 512 == 64 * page
    finally:
        os.close(fd)


def test_where_a_file_without_a_name_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    def where() -> str:
        fd = anonymous_files.memory("a_name")
        try:
            assert not os.get_inheritable(fd)
            return os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    assert where() == "/memfd:a_name (deleted)"
    monkeypatch.setattr(os, "memfd_create", refuses)
    assert where().startswith("/dev/shm/")
    monkeypatch.setattr(anonymous_files, "SHM_MOUNT", str(tmp_path / "missing"))
    monkeypatch.setattr(anonymous_files.tempfile, "tempdir", str(tmp_path))
    assert where().startswith(str(tmp_path))
    monkeypatch.setattr(anonymous_files.tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(
        OSError, match=r"memfd_create is refused here \(Operation not permitted\)\. Allow .* \(TMPDIR\)"
    ):
        where()
    assert not list(tmp_path.iterdir())


def test_a_ring_that_can_lie_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only() -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "memfd_create", refuses)
    monkeypatch.setattr(segment, "_posix_segment", read_only)
    with pytest.raises(OSError, match=r"/dev/shm cannot be used .*Read-only.*, and memfd_create is refused .* Allow"):
        segment.Segment(1, 2, 2, 2, "auto", None, False)
