"""Who waits, sleeps: a trainer busy with something else costs its loader nothing."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest
from conftest import Augmented

import shmloader


def used(process: psutil.Process) -> tuple[float, int]:
    times = process.cpu_times()
    return times.user + times.system, process.num_ctx_switches().voluntary


def settle(processes: list[psutil.Process]) -> None:
    for _ in range(200):
        before = [used(process) for process in processes]
        time.sleep(0.1)
        if [used(process) for process in processes] == before:
            return


@pytest.mark.parametrize("persistent", [False, True])
def test_a_trainer_that_takes_its_time(persistent: bool) -> None:
    iterator: Any = iter(shmloader.DataLoader(Augmented(500), num_workers=2, persistent_workers=persistent))
    for _ in range(50):
        next(iterator)
    workers = [psutil.Process(worker.pid) for worker in iterator._workers]
    me = psutil.Process()
    settle(workers)
    before, mine = [used(worker) for worker in workers], used(me)
    time.sleep(2)
    after, mine_after = [used(worker) for worker in workers], used(me)
    # 1 % of the 2 s, in the clock's ticks of 10 ms
    assert round(sum(b[0] - a[0] for a, b in zip(before, after, strict=True)), 3) <= 0.02
    assert round(mine_after[0] - mine[0], 3) <= 0.02
    assert all(b[1] - a[1] <= 1 for a, b in zip(before, after, strict=True)), (before, after)
    next(iterator)
    iterator.close()


def test_a_trainer_that_waits_for_a_batch() -> None:
    class Slow(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 20:
                time.sleep(1.5)
            return super().__getitem__(index)

    iterator: Any = iter(shmloader.DataLoader(Slow(), num_workers=1))
    for _ in range(20):
        next(iterator)
    me = psutil.Process()
    before, began = used(me), time.monotonic()
    next(iterator)
    assert time.monotonic() - began > 1
    after = used(me)
    assert round(after[0] - before[0], 3) <= 0.02 and after[1] - before[1] < 20
    iterator.close()
