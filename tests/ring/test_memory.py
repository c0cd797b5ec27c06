"""Descriptors, mappings and shared memory: bounded, given back, and refused in words where there is too little."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import pathlib
import re
import resource
import struct
import time
from typing import Any

import pytest
import torch
from conftest import descriptors
from hostile import BothSides
from scripts import run_script

import shmloader
from shmloader.ring import segment
from shmloader.system import user_line


class Sizes(torch.utils.data.Dataset):
    """Batches of changing size and structure."""

    def __init__(self, length: int, most: int = 5000) -> None:
        self.length, self.most = length, most

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        x = torch.full((index * 37 % self.most,), index % 100, dtype=torch.uint8)
        return [x, {"x": x, "k": index}, (x[: index % 7], "s" * (index % 50))][index % 3]


def mapped() -> tuple[int, int]:
    """Lines of /proc/self/maps, and VmSize in KiB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return len(pathlib.Path("/proc/self/maps").read_text().splitlines()), int(re.search(r"VmSize:\s+(\d+)", status)[1])


def test_nothing_grows_with_the_batches() -> None:
    iterator = iter(shmloader.DataLoader(Sizes(1_000_000), batch_size=None, num_workers=2))
    for _ in range(1500):
        next(iterator)
    lines, size = mapped()
    fds = sum(descriptors().values())
    for _ in range(10_000):
        next(iterator)
    assert sum(descriptors().values()) == fds
    assert mapped()[0] <= lines + 3 and mapped()[1] <= size + 4096
    iterator.close()


def test_nothing_grows_with_the_epochs() -> None:
    def epoch() -> None:
        for _ in shmloader.DataLoader(Sizes(12), batch_size=None, num_workers=1):
            pass

    for _ in range(4):
        epoch()
    gc.collect()
    lines, size = mapped()
    fds = descriptors()
    for _ in range(25):
        epoch()
    gc.collect()
    assert not descriptors() - fds
    assert mapped()[0] <= lines + 3 and mapped()[1] <= size + 4096


PAGE = mmap.PAGESIZE
AROUND = 65536  # bytes that a read maps, at most


PAGES = 4096  # of a tensor of 16 MiB


class Faults(torch.utils.data.Dataset):
    """A large tensor, the page faults of its worker so far, and which worker that is."""

    def __init__(self) -> None:
        self.large = torch.ones(PAGES << 12, dtype=torch.uint8)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)  # both workers are to have their turns
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return self.large, resource.getrusage(resource.RUSAGE_SELF).ru_minflt, info.id


def maps_around() -> bool:
    """Whether a read maps more than its own page, where these have been written."""
    memory = mmap.mmap(-1, 1 << 20)
    memory.write(bytes(1 << 20))
    read, write = os.pipe()
    if os.fork() == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for at in range(0, 1 << 20, 4096):
            memory[at]
        os.write(write, bytes([resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 128]))
        os._exit(0)
    os.wait()
    yes = os.read(read, 1) == b"\1"
    os.close(read)
    os.close(write)
    return yes


@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "chunk_size": 1}], ids=["batches", "chunks"])
def test_pages_that_another_worker_has_written_are_not_mapped_one_by_one(options: dict[str, Any]) -> None:
    if not maps_around():
        pytest.skip("this kernel maps one page with each fault")
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    slots, pairs = set(), set()
    for large, faults, workers in shmloader.DataLoader(Faults(), num_workers=2, schedule="steal", **options):
        for row, count, worker in zip(large, faults.tolist(), workers.tolist(), strict=True):
            first.setdefault(worker, count)
            last[worker] = count
            slots.add(row.data_ptr())
            pairs.add((worker, row.data_ptr()))
    taken = sum(last.values()) - sum(first.values())
    spared = len(pairs) * PAGES - taken
    assert spared > 0.5 * (len(pairs) - len(slots)) * PAGES, f"{taken} faults, {len(slots)} slots, {len(pairs)} pairs"


def mapped_here(at: int, size: int) -> int:
    """How many pages of these bytes this process has mapped."""
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(at // PAGE * 8)
        words = pages.read(-(-(at % PAGE + size) // PAGE) * 8)
    return sum(word >> 63 for (word,) in struct.iter_unpack("Q", words))


def maps_at_once() -> bool:
    """Whether this kernel has MADV_POPULATE_WRITE."""
    try:
        mmap.mmap(-1, PAGE).madvise(23)
    except OSError:
        return False
    return True


@pytest.mark.skipif(not maps_at_once(), reason="this kernel maps a new page when it is written")
@pytest.mark.parametrize("memory", ["posix", "memfd", "auto"])
def test_new_pages_of_a_slot_are_mapped_together(memory: Any) -> None:
    """Before they are written, and no others."""
    with BothSides(memory=memory) as ring:
        ring.claim()
        had = ring.worker.committed(ring.payload) // PAGE
        for size in (100_000, 5 << 20, (3 << 20) + 4097):
            at = ring.worker.allocate(size)
            start = ring.worker.address(at)
            assert mapped_here(start + PAGE, size - PAGE) < 3
            ring.worker.map_written(at, size)
            spanned = -(-(start % PAGE + size) // PAGE)
            assert mapped_here(start, size) >= spanned - (had if at == 0 else 0)
        had = ring.worker.committed(ring.payload)
        behind = ring.worker.address(0) + had
        assert not mapped_here(behind, 4 * PAGE)
        ring.worker.publish(0)


def test_pages_that_a_slot_had_before_are_mapped_by_reads() -> None:
    """One read maps many of them if they were written; and it costs little if they were not, as here."""
    size = 4 << 20
    with BothSides() as ring:
        ring.claim()
        ring.worker.allocate(size)
        ring.writer.write(torch.ones(3))
        ring.worker.publish(0)
        had, _ = ring.payload, ring.take()
        ring.claim()
        assert ring.payload == had
        at = ring.worker.allocate(size)
        ring.worker.map_written(at, size)
        assert mapped_here(ring.worker.address(at), size) < 2 * size // AROUND
        ring.worker.publish(0)


def test_kept_batches_of_closed_rings_hold_their_payload_and_no_more() -> None:
    held = []
    _, size = mapped()
    for _ in range(6):
        loader = shmloader.DataLoader([torch.ones(10)] * 4, batch_size=None, num_workers=1)
        iterator = iter(loader)
        held.append(next(iterator))
        slot = iterator._ring.slot_stride
        loader.close()
        del iterator
    gc.collect()
    assert mapped()[1] - size < 7 * slot / 1024
    assert all(bool((batch == 1).all()) for batch in held)
    held.clear()
    gc.collect()
    assert mapped()[1] - size < 16384


# ------------------------------------------------------------------------------------------------- too little of it all

SMALL_SHM = """
import gc, os, warnings, torch, shmloader
from conftest import mount_small_shm
mount_small_shm("64m")
os.environ["SHMLOADER_RING_MEMORY"] = "WHERE"
class Big(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, k): return torch.full((BYTES,), k, dtype=torch.uint8)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    loader = shmloader.DataLoader(Big(), batch_size=None, num_workers=2)
    held_batches = []
    least = 1.0
    try:
        for epoch in range(2):
            for k, batch in enumerate(loader):
                assert batch.numel() == BYTES and bool((batch == k).all()), k
                if k == 3: held_batches.append(batch)
                mount = os.statvfs("/dev/shm")
                least = min(least, mount.f_bavail / mount.f_blocks)
        assert bool((held_batches[0] == 3).all())
        print("trained, least free", least)
        batch = None
        gc.collect()
        mount = os.statvfs("/dev/shm")
        print("held", (mount.f_blocks - mount.f_bfree) * mount.f_frsize / BYTES)
    except Exception as error:
        print(type(error).__name__, "|", error)
for warning in caught:
    if "suggested max" not in str(warning.message): print("warning:", warning.message)
loader = batch = held_batches = caught = None
gc.collect()
print("left", os.listdir("/dev/shm"), os.statvfs("/dev/shm").f_bfree - os.statvfs("/dev/shm").f_blocks)
"""


def in_small_shm(memory: str, size: int) -> str:
    ran = run_script(SMALL_SHM.replace("WHERE", memory).replace("BYTES", str(size)))
    if "not permitted" in ran.out:
        pytest.skip("this user may not mount")
    assert ran.status == 0, ran.err
    return ran.out + ran.err


@pytest.mark.long
def test_a_small_dev_shm_and_posix() -> None:
    out = in_small_shm("posix", 20_000_000)
    assert "Caught MemoryError" in out or "MemoryError |" in out
    for word in (
        "slots x",
        "of shared memory. /dev/shm has",
        "free",
        "--shm-size",
        "SHMLOADER_RING_MEMORY=auto or memfd",
        "batch_size",
        "num_workers",
    ):
        assert word in out, (word, out)
    assert "left [] 0" in out


@pytest.mark.long
def test_a_small_dev_shm_and_auto() -> None:
    out = in_small_shm("auto", 16_500_000)  # four of these would fill it
    assert "trained" in out and out.count("warning:") == 1 and "is too small for the ring's slots" in out
    assert float(out.partition("least free ")[2].split()[0]) >= 1 / 16, "others are left nothing of /dev/shm"
    assert "left [] 0" in out


def test_a_dev_shm_that_is_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(segment, "_posix_segment", refuse)
    monkeypatch.setattr(user_line, "_met", set())
    number = errno.EROFS
    loader = shmloader.DataLoader(range(2), num_workers=1)
    with pytest.warns(UserWarning, match="/dev/shm cannot be used here"):
        assert [batch.item() for batch in loader] == [0, 1]
    with monkeypatch.context() as only, pytest.raises(OSError, match="Read-only"):
        only.setenv("SHMLOADER_RING_MEMORY", "posix")
        iter(shmloader.DataLoader(range(2), num_workers=1))
    number = errno.EMFILE
    with pytest.raises(OSError, match="too many open files"):
        iter(shmloader.DataLoader(range(2), num_workers=1))


@pytest.mark.long
def test_a_small_dev_shm_and_memfd() -> None:
    out = in_small_shm("memfd", 20_000_000)
    assert "trained" in out and "warning:" not in out and "left [] 0" in out


@pytest.mark.parametrize("memory", ["auto", pytest.param("posix", marks=pytest.mark.long)])
def test_a_small_dev_shm_that_is_large_enough(memory: str) -> None:
    out = in_small_shm(memory, 1_000_000)
    assert "trained" in out and "warning:" not in out and "left [] 0" in out
    assert float(out.partition("held ")[2].split()[0]) < 3, "two batches are kept; the ring's other slots stayed"


@pytest.mark.parametrize(("memory", "moves"), [("posix", False), ("memfd", False), ("auto", False), ("auto", True)])
def test_what_just_fits_is_not_refused_anywhere(monkeypatch: pytest.MonkeyPatch, memory: Any, moves: bool) -> None:
    allocate = os.posix_fallocate
    most = [0, 0]  # of /dev/shm's segment, or the only one, and of the memfd beside it

    def stingy(fd: int, at: int, size: int) -> None:
        if size > most[fd != ring.segment.fd]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, at, size)

    with BothSides(memory=memory) as ring:
        monkeypatch.setattr(os, "posix_fallocate", stingy)
        ring.claim()
        for size in (400_000, 460_000):
            fits = -(-size // 4096) * 4096
            most[moves] = fits
            ring.segment.commit(ring.worker, ring.payload, size, 0)
            assert ring.worker.committed(ring.payload) == fits
            assert ring.worker.overflowed(ring.payload) == moves
            with pytest.raises(MemoryError, match=r"the ring needs 4 slots x \d"):
                ring.segment.commit(ring.worker, ring.payload, fits + 1, 0)
        most[0] = 401_408  # where tasks lie
        assert ring.segment.commit_task(1, 400_000) == most[0]


MEMORIES = pytest.mark.parametrize(("memory", "moves"), [("posix", False), ("memfd", False), ("auto", True)])


@MEMORIES
def test_pages_are_found_between_a_timers_signals(monkeypatch: pytest.MonkeyPatch, memory: Any, moves: bool) -> None:
    """Before 2024, tmpfs gives a range up when a signal comes, and Python asks for all of it again."""
    allocate, is_full = os.posix_fallocate, False

    def interrupted(fd: int, at: int, size: int) -> None:
        if size > 8 << 20:
            raise InterruptedError(errno.EINTR, "The timer's signal came: it would be tried again, for ever")
        if is_full and fd == ring.segment.fd:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, at, size)

    with BothSides(memory=memory) as ring:
        monkeypatch.setattr(os, "posix_fallocate", interrupted)
        ring.claim(list(range(3_000_000)))  # its indices take 24 MB
        is_full = moves
        ring.segment.commit(ring.worker, ring.payload, 50_000_000, 0)
        assert ring.worker.committed(ring.payload) > 50_000_000
        assert ring.worker.overflowed(ring.payload) == moves


@MEMORIES
def test_what_was_found_in_vain_is_given_back(monkeypatch: pytest.MonkeyPatch, memory: Any, moves: bool) -> None:
    allocate = os.posix_fallocate
    most = [1 << 40, 1 << 40]

    def scarce(fd: int, at: int, size: int) -> None:
        if os.fstat(fd).st_blocks * 512 + size > most[fd != ring.segment.fd]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, at, size)

    def used() -> list[int]:
        return [os.fstat(fd).st_blocks * 512 for fd in (ring.segment.fd, ring.segment.memfd) if fd >= 0]

    with BothSides(memory=memory) as ring:
        monkeypatch.setattr(os, "posix_fallocate", scarce)
        ring.claim()
        at = ring.worker.allocate(10 << 20)
        ring.worker.write(at, bytes(range(256)) * (10 << 12))
        before = used()
        most[:] = [before[0] + (20 << 20), (before[-1] if len(before) > 1 else 0) + (20 << 20)]
        with pytest.raises(MemoryError, match=r"the ring needs 4 slots x \d"):
            ring.worker.allocate(60 << 20)
        assert used() == before
        lies = torch.frombuffer(ring.worker.buffer(), dtype=torch.uint8, offset=at, count=10 << 20)
        assert lies.numpy().tobytes() == bytes(range(256)) * (10 << 12)
        del lies
        if moves:
            most[1] = 1 << 40
            ring.worker.allocate(60 << 20)
            assert ring.worker.overflowed(ring.payload) and used()[0] < before[0], (
                "its pages in /dev/shm are given back"
            )


LIMITED = """
import os, resource, torch, shmloader, gc
class Big(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, k): return torch.full((BYTES,), k, dtype=torch.uint8)
def fds(): return len(os.listdir("/proc/self/fd"))
list(shmloader.DataLoader(Big(), batch_size=None, num_workers=1))
before = fds()
resource.setrlimit(resource.LIMIT, (VALUE, resource.RLIM_INFINITY if VALUE > 1000 else 1000))
for memory in ("auto", "posix", "memfd"):
    os.environ["SHMLOADER_RING_MEMORY"] = memory
    try:
        loader = shmloader.DataLoader(Big(), batch_size=None, num_workers=WORKERS)
        for k, batch in enumerate(loader):
            assert bool((batch == k).all())
        print("trained")
    except Exception as error:
        print(type(error).__name__, "|", error)
        del error
gc.collect()
print("fds", fds() - before)
"""


def limited(limit: str, value: str, size: int = 1000, workers: int = 2) -> str:
    ran = run_script(
        LIMITED.replace("LIMIT", limit)
        .replace("VALUE", value)
        .replace("BYTES", str(size))
        .replace("WORKERS", str(workers))
    )
    assert ran.status == 0, ran.err
    left = int(ran.out.rpartition("fds ")[2])
    # a fork that finds no descriptor for its second pipe leaks its first (CPython): 2 in each of the three attempts
    assert left <= (6 if "OSError" in ran.out else 0), ran.out
    return ran.out


@pytest.mark.long
def test_limited_descriptors() -> None:
    out = limited("RLIMIT_NOFILE", "fds() + 6", workers=20)
    assert (
        out.count("OSError |") == 3
        and out.count("too many open files: this process may have") == 3
        and "ulimit -n" in out
    )
    assert limited("RLIMIT_NOFILE", "fds() + 40", workers=2).count("trained") == 3


@pytest.mark.long
def test_limited_address_space() -> None:
    used = "(int(open('/proc/self/statm').read().split()[0]) * 4096)"
    assert limited("RLIMIT_AS", f"{used} + (2 << 30)").count("trained") == 3
    out = limited("RLIMIT_AS", f"{used} + (1 << 20)")
    assert out.count("MemoryError |") == 3 and "ulimit -v" in out, out


@pytest.mark.long
def test_limited_file_size() -> None:
    out = limited("RLIMIT_FSIZE", "1 << 30")
    assert out.count("trained") == 3, out
    out = limited("RLIMIT_FSIZE", "4096 * 1024", size=3_000_000)
    assert (out.count("MemoryError") == 3 and "ulimit -f" in out) or out.count("trained") == 3, out
