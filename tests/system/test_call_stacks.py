"""A worker says where it is, whatever it does, and lives on."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmloader.storage.threads import Threads
from shmloader.system.call_stacks import TELL, TELL_FROM_C, StackMemory
from shmloader.system.processes import catches, has_not_taken

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")


class Part:
    def __getitem__(self, index: int) -> list[int]:
        return [*self.each(index)]

    def each(self, index: int) -> Any:
        for k in range(5):
            yield self.sum(k + index)

    def sum(self, k: int) -> int:
        with contextlib.suppress(ValueError):
            int("x" * (k % 3))
        return sum(map(self.more, range(20)))

    def more(self, k: int) -> int:
        return k + 1


def runs_python() -> None:
    """What makes and drops frames all the time, and so has them half made at any."""
    while True:
        part = Part()
        sum(sum(part[index]) for index in range(50))


def stays_in_c() -> None:
    """It never comes to an instruction of the interpreter again, and never gives the GIL."""
    sum(itertools.repeat(0))


def waits() -> None:
    """In a thread of ours."""
    time.sleep(60)


def has_idle_threads() -> None:
    threads = Threads(4)
    for future in [threads.submit(lambda: None) for _ in range(3)]:
        future.result()
    threads.submit(waits).result()


def tells(stacks: StackMemory, then: Callable[[], None]) -> None:
    stacks.tell()
    then()


@contextlib.contextmanager
def asked(then: Callable[[], None]) -> Iterator[tuple[StackMemory, int]]:
    """A process that does this and writes its stacks where it is asked: into which memory, and its pid."""
    stacks = StackMemory()
    process = multiprocessing.get_context("fork").Process(target=tells, args=(stacks, then))
    process.start()
    try:
        assert process.pid is not None
        while not catches(process.pid, TELL):
            time.sleep(0.01)
        yield stacks, process.pid
        assert process.is_alive(), f"it died of being asked: {process.exitcode}"
    finally:
        process.kill()
        process.join()
        stacks.close()


def test_one_that_runs_python_is_asked_time_and_again() -> None:
    """With faulthandler's handler it died of one time in 20 to 200, on Python 3.11 to 3.13."""
    with asked(runs_python) as (stacks, pid):
        for _ in range(800):
            os.kill(pid, TELL)
            time.sleep(0.001)
        size = -1
        while (now := os.fstat(stacks._fd).st_size) != size:  # until the last answer is written
            size = now
            time.sleep(0.2)
        stack = stacks.stack_of(pid)
        assert " in runs_python" in stack and "call_stacks.py" not in stack.replace(__file__, ""), stack


def test_one_that_never_leaves_a_call_of_c() -> None:
    with asked(stays_in_c) as (stacks, pid):
        stack, end = "", time.monotonic() + 20
        while " in stays_in_c" not in stack and time.monotonic() < end:  # it may still be on its way there
            stack = stacks.stack_of(pid)
        assert " in stays_in_c" in stack, stack
        os.kill(pid, signal.SIGSTOP)
        for _ in range(2):
            assert "it does not answer; its state is T (stopped)" in stacks.stack_of(pid)
        assert has_not_taken(pid, TELL)
        assert not has_not_taken(pid, TELL_FROM_C), "it would come when the worker goes on, wherever that is by then"


def test_idle_threads_are_left_out() -> None:
    with asked(has_idle_threads) as (stacks, pid):
        end = time.monotonic() + 20
        while " in waits" not in (stack := stacks.stack_of(pid)):
            assert time.monotonic() < end, stack
        assert " in has_idle_threads" in stack
        assert stack.count("most recent call first") == 2 and "\n\n\n" not in stack, stack
