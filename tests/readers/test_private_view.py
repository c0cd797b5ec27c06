"""What a process writes into a batch, it alone sees, and not in the batch that comes there next."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
from scripts import run_script

from shmloader.core.private_view import WAYS, PrivateView
from shmloader.core.trainer import TrainerSide
from shmloader.ring.segment import Segment

PAGE = mmap.PAGESIZE
BYTES = 40 * PAGE
LARGE = 300 * PAGE  # where a look takes longer than to read the number of page faults


@pytest.mark.parametrize("ways", [WAYS, WAYS[1:], WAYS[2:]], ids=WAYS)
def test_written_pages_are_dropped_and_others_stay(ways: tuple[str, ...]) -> None:
    segment = Segment(1, 2, 2, 2, "memfd", None, remember=False)
    ring = TrainerSide(segment, False, 2, True)
    segment.format(ring)
    segment.commit(ring, 1, BYTES, 0)
    views = [PrivateView(ring, segment.fd, ways), PrivateView(ring, segment.fd, ways)]
    assert views[0].way == ways[0] or ways is WAYS  # an older kernel notes nothing
    shared = mmap.mmap(segment.fd, BYTES, offset=ring.slot_offset(1))
    for value in (1, 2, 3):
        shared[:] = bytes([value]) * BYTES
        for number, view in enumerate(views):
            view.lend(1, BYTES - 7)
            seen = (ctypes.c_ubyte * BYTES).from_address(view.address(1))
            assert bytes(seen) == bytes([value]) * BYTES
            for at in (0, 5 * PAGE + 17, 6 * PAGE, BYTES - 8):
                seen[at] = 100 + number
        for number, view in enumerate(views):
            seen = (ctypes.c_ubyte * BYTES).from_address(view.address(1))
            assert bytes(seen).count(100 + number) == 4 and bytes(seen).count(value) == BYTES - 4
        assert shared[:] == bytes([value]) * BYTES
    shared.close()
    del views
    ring.close()
    segment.close()


@pytest.mark.parametrize("ways", [WAYS, WAYS[1:]], ids=WAYS[:2])  # where all pages are dropped, each is a fault again
def test_nobody_looks_for_written_pages_where_there_was_no_page_fault(ways: tuple[str, ...], tmp_path: Path) -> None:
    """A system call that writes to a page causes a fault, too."""
    segment = Segment(1, 2, 2, 2, "memfd", None, remember=False)
    ring = TrainerSide(segment, False, 2, True)
    segment.format(ring)
    segment.commit(ring, 1, LARGE, 0)
    view = PrivateView(ring, segment.fd, ways)
    shared = mmap.mmap(segment.fd, LARGE, offset=ring.slot_offset(1))
    seen = (ctypes.c_ubyte * LARGE).from_address(view.address(1))
    (tmp_path / "file").write_bytes(b"w" * PAGE)
    rounds = 200
    for k in range(rounds):
        shared[::PAGE] = bytes([k % 100]) * (LARGE // PAGE)
        view.lend(1, LARGE)
        assert seen[0] == seen[7 * PAGE] == k % 100
    assert view.looks < rounds - 10
    with open(tmp_path / "file", "rb", buffering=0) as file:
        assert file.readinto(memoryview(seen).cast("B")[PAGE : 2 * PAGE]) == PAGE
    assert seen[PAGE] == ord("w") and shared[PAGE] == (rounds - 1) % 100
    looks = view.looks
    view.lend(1, LARGE)
    assert view.looks == looks + 1 and seen[PAGE] == (rounds - 1) % 100
    shared.close()
    del view
    ring.close()
    segment.close()


def test_a_batch_that_is_larger_than_the_one_before() -> None:
    segment = Segment(1, 2, 2, 2, "memfd", None, remember=False)
    ring = TrainerSide(segment, False, 2, True)
    segment.format(ring)
    segment.commit(ring, 1, BYTES, 0)
    view = PrivateView(ring, segment.fd)
    shared = mmap.mmap(segment.fd, BYTES, offset=ring.slot_offset(1))
    for value, bytes_lent in ((1, PAGE), (2, 3 * PAGE), (3, 2 * PAGE), (4, BYTES), (5, 1)):
        shared[:] = bytes([value]) * BYTES
        view.lend(1, bytes_lent)
        seen = (ctypes.c_ubyte * bytes_lent).from_address(view.address(1))
        assert bytes(seen) == bytes([value]) * bytes_lent
        seen[:] = bytes(bytes_lent)
    shared.close()
    del view
    ring.close()
    segment.close()


def test_written_pages_are_looked_for_where_nobody_counts_page_faults() -> None:
    """gVisor counts none, and a filter of system calls may refuse the count, as here."""
    ran = run_script(
        """
import ctypes, errno, platform, struct
from tests.readers import test_private_view as tests
from shmloader.core.private_view import WAYS

class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

getrusage = {"x86_64": 98, "aarch64": 165}[platform.machine()]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, getrusage), (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)]
program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    print("no filter")
else:
    tests.BYTES = 1 << 21  # in a smaller batch they are looked for anyway
    for k in range(len(WAYS)):
        tests.test_written_pages_are_dropped_and_others_stay(WAYS[k:])
    print("seen")
""",
        fresh=True,
    )
    if ran.out == "no filter\n":
        pytest.skip("this system lets nobody filter system calls")
    assert ran.out == "seen\n", ran.err
