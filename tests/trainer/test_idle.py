"""Who waits, sleeps: a trainer busy with something else costs its loader nothing.

It measures each thread's own CPU, to the nanosecond, and how often it went to sleep, once it sleeps.  Neither grows
with other work of the machine.
"""

from __future__ import annotations

import os
import pathlib
import resource
import threading
import time
from typing import Any, NamedTuple

from conftest import Augmented

import shmloader

SLEEPING = "SD"  # a thread that is ready and waits for a core is in state R


class Used(NamedTuple):
    """What a thread has used up to now; `state` is the kernel's letter."""

    state: str
    nanoseconds: int
    sleeps: int


def used(pid: int) -> dict[int, Used]:
    """By thread."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        found[int(task.name)] = Used(state, nanoseconds, int(status["voluntary_ctxt_switches"]))
    return found


def settled(pids: list[int]) -> list[dict[int, Used]]:
    """What they have used once all their threads sleep, and stay asleep."""
    end = time.monotonic() + 30
    before = [used(pid) for pid in pids]
    while True:
        time.sleep(0.1)
        now = [used(pid) for pid in pids]
        if now == before and all(thread.state in SLEEPING for threads in now for thread in threads.values()):
            return now
        assert time.monotonic() < end, f"they do not come to rest: {now}"
        before = now


def others(threads: dict[int, Used]) -> dict[int, Used]:
    """Without the thread that runs this."""
    return {thread: value for thread, value in threads.items() if thread != threading.get_native_id()}


def nanoseconds(threads: dict[int, Used]) -> int:
    return sum(thread.nanoseconds for thread in threads.values())


def sleeps(threads: dict[int, Used]) -> int:
    return sum(thread.sleeps for thread in threads.values())


def test_a_trainer_that_takes_its_time() -> None:
    iterator: Any = iter(shmloader.DataLoader(Augmented(500), num_workers=2, persistent_workers=True))
    for _ in range(50):
        next(iterator)
    workers = [worker.pid for worker in iterator._workers]
    before, mine = settled(workers), others(used(os.getpid()))
    time.sleep(2)
    after, mine_after = [used(worker) for worker in workers], others(used(os.getpid()))
    for was, now in zip(before, after, strict=True):
        assert sleeps(now) - sleeps(was) <= 1, (before, after)
    # 1 % of the 2 s
    assert sum(map(nanoseconds, after)) - sum(map(nanoseconds, before)) <= 20_000_000, (before, after)
    assert nanoseconds(mine_after) - nanoseconds(mine) <= 20_000_000, (mine, mine_after)
    next(iterator)
    iterator.close()


class Slow(Augmented):
    """Sample 20 takes 1.5 s from the moment that the trainer is found asleep (one that polls never is)."""

    def __getitem__(self, index: int) -> Any:
        if index == 20:
            trainer, before = os.getppid(), None
            for _ in range(20):
                now = used(trainer)[trainer]
                if now == before and now.state in SLEEPING:
                    break
                before = now
                time.sleep(0.2)
            time.sleep(1.5)
        return super().__getitem__(index)


def test_a_trainer_that_waits_for_a_batch() -> None:
    iterator: Any = iter(shmloader.DataLoader(Slow(), num_workers=1))
    for _ in range(20):
        next(iterator)
    assert not iterator._ring.ready()
    before, slept = time.thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    next(iterator)
    assert time.thread_time() - before <= 0.02
    assert 0 < resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - slept < 20
    iterator.close()
