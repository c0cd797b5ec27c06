"""Memory that all processes of a user find, and that nothing is left of when the last of them ends."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from shmloader.system import common_memory
from shmloader.system.common_memory import held, open_common


@pytest.fixture
def name() -> str:
    return f"shmloader_test_{os.getpid()}_{time.monotonic_ns()}"


def nothing(_: int) -> None:
    pass


def forked(work: Callable[[], Any]) -> int:
    """A child that does it, and lives until it is killed."""
    ready, answer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(answer, str(work()).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(answer)
    forked.answer = os.read(ready, 100).decode()  # type: ignore[attr-defined]
    os.close(ready)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_another_process_finds_it_and_keeps_it(name: str) -> None:
    child = forked(lambda: os.fstat(open_common(name, lambda fd: os.write(fd, b"kept"))).st_ino)
    inode = int(forked.answer)  # type: ignore[attr-defined]
    fd = open_common(name, nothing)
    end(child)
    assert os.fstat(fd).st_ino == inode and os.pread(fd, 4, 0) == b"kept"
    os.close(fd)
    other = open_common(name, nothing)
    assert os.fstat(other).st_size == 0  # the last one has closed it, so this is new
    os.close(other)


def test_those_that_look_at_once_find_one(name: str) -> None:
    """Also those that look while it is being made."""
    started, begin = os.pipe()
    children, answers = [], []
    for _ in range(4):
        answer, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.read(started, 1)
                fd = open_common(name, lambda fd: (os.write(fd, b"a"), time.sleep(0.05)))
                os.write(tell, f"{os.fstat(fd).st_ino} {os.fstat(fd).st_size}".encode())
                signal.pause()
            finally:
                os._exit(1)
        os.close(tell)
        children.append(child)
        answers.append(answer)
    os.write(begin, b"xxxx")
    found = {os.read(answer, 100) for answer in answers}
    for child in children:
        end(child)
    for fd in (started, begin, *answers):
        os.close(fd)
    assert len(found) == 1


def test_a_process_that_is_killed_leaves_no_lock() -> None:
    end(forked(lambda: fcntl.flock(os.open(common_memory._LOCK, os.O_RDONLY), fcntl.LOCK_EX)))
    lock = os.open(common_memory._LOCK, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)


def test_what_is_half_made_is_not_found(name: str) -> None:
    half = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)  # of a process that was killed while it made it
    fd = open_common(name, nothing)
    assert os.fstat(fd).st_ino != os.fstat(half).st_ino
    os.close(fd)
    os.close(half)


def test_memory_that_cannot_be_made_leaves_nothing(name: str) -> None:
    def refuse(_: int) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        open_common(name, refuse)


def test_a_place_leads_there_or_nowhere(name: str) -> None:
    fd = open_common(name, nothing)
    pid, number, inode = held(fd)
    for place, is_same in (((pid, number, inode), True), ((pid, number, inode + 1), False), ((pid, 0, inode), False)):
        other = open_common(f"{name}_other", nothing, place)
        assert (os.fstat(other).st_ino == inode) == is_same
        os.close(other)
    os.close(fd)


def test_who_keeps_the_lock_for_ever_is_not_waited_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    child = forked(lambda: fcntl.flock(os.open(common_memory._LOCK, os.O_RDONLY), fcntl.LOCK_EX))
    monkeypatch.setattr(common_memory, "PATIENCE", 0.05)
    fd = open_common(name, nothing)
    os.close(fd)
    end(child)
