"""Twelve made situations, beside a busy loop: loader.report() names the cause, and is never sure of a wrong one.

SHMLOADER_VERDICT_RUNS=20 has each run 20 times; 18 of these must be named right.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpu_double import DoubleGpu, installed
from scripts import run_script

import shmloader
from shmloader.statistics.report import Report

RUNS = int(os.environ.get("SHMLOADER_VERDICT_RUNS", "3"))

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


def burn(seconds: float) -> None:
    """Take so much of a core's time, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Made(torch.utils.data.Dataset):
    """Samples that take so long each, asleep or on a core; in one worker, and for its first sample, longer."""

    def __init__(
        self, length: int, sleeps: float = 0, burns: float = 0, slow_worker: float = 1, first: float = 0, size: int = 8
    ) -> None:
        self.length, self.sleeps, self.burns, self.slow_worker, self.first = length, sleeps, burns, slow_worker, first
        self.size = size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.first:
            time.sleep(self.first)
            self.first = 0  # in this worker
        info = torch.utils.data.get_worker_info()
        slower = self.slow_worker if info is not None and info.id == 0 else 1
        if self.sleeps:
            time.sleep(self.sleeps * slower)
        burn(self.burns * slower)
        return torch.zeros(self.size, dtype=torch.uint8)


def burning_collate(samples: list[Any]) -> Any:
    burn(0.01)
    return torch.stack(samples)


def run(loader: Any, step: float, epochs: int = 1, keep: int = 0) -> Report:
    """Train: each step sleeps, as one does that waits for a device."""
    for _ in range(epochs):
        window: list[Any] = []
        for batch in loader:
            window = [*window, batch][-keep:] if keep else []
            del batch
            time.sleep(step)
    report: Report = loader.report()
    loader.close()
    return report


def loader(dataset: Any, workers: int, batch_size: int | None = 4, **options: Any) -> Any:
    return shmloader.DataLoader(
        dataset, batch_size=batch_size, num_workers=workers, multiprocessing_context="fork", **options
    )


SITUATIONS = {
    "read": lambda: run(loader(Made(240, sleeps=0.01), 2), 0.001),
    "decode": lambda: run(loader(Made(400, burns=0.003), 2), 0.001),
    "collate": lambda: run(loader(Made(400), 2, collate_fn=burning_collate), 0.001),
    "worker": lambda: run(loader(Made(480, sleeps=0.001, slow_worker=7), 4), 0.001),
    "workers": lambda: run(loader(Made(320, sleeps=0.003), 1), 0.004),
    "cores": lambda: run(loader(Made(480, burns=0.002), 8), 0.001),
    "consumer-bound": lambda: run(loader(Made(240, sleeps=0.001), 2), 0.015),
    "spare_slots": lambda: run(loader(Made(160, size=8 << 20), 2, None), 0.006, keep=4),
    "first_batch": lambda: run(loader(Made(80, first=0.3), 2), 0.005, epochs=3),
}


@pytest.fixture
def busy_loop() -> Iterator[None]:
    """Another process that takes all of a core that it can get."""
    process = multiprocessing.get_context("fork").Process(target=burn, args=(10_000,), daemon=True)
    process.start()
    yield
    process.kill()
    process.join()


def named(report: Report) -> str:
    verdict = report.verdict
    return verdict.cause.name if verdict.cause is not None else verdict.kind


def judge(name: str, reports: list[Report]) -> None:
    print(*reports, sep="\n\n")
    right = [named(report) == name for report in reports]
    sure_but_wrong = [report for report, ok in zip(reports, right, strict=True) if report.verdict.sure and not ok]
    assert not sure_but_wrong, f"it is {name}\n{sure_but_wrong[0]}"
    assert sum(right) >= 0.9 * RUNS - 0.5, [named(report) for report in reports]


@pytest.mark.parametrize("name", SITUATIONS)
def test_situations(name: str, busy_loop: None) -> None:
    judge(name, [SITUATIONS[name]() for _ in range(RUNS)])


class SlowGpu(DoubleGpu):
    """A device that the bytes take long to."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(0.012)
        return super().copy(tensor)


@pytest.fixture
def slow_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("gpu_double.DoubleGpu", SlowGpu)
    for install in installed(monkeypatch):
        install()
        yield


def test_a_slow_copy_to_the_device(slow_gpu: None, busy_loop: None) -> None:
    judge("device", [run(loader(Made(400), 1, device="cuda"), 0.002) for _ in range(RUNS)])


RANKS = """
    import multiprocessing, os, sys, tempfile, time, torch
    from tests.statistics.test_report_verdicts import Made, burn, loader, named

    def rank(number, results):
        meet = os.path.join(os.environ["SHMLOADER_TEST_DIR"], f"meet_{os.getppid()}")
        torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=number, world_size=3)
        made = loader(Made(240, sleeps=0.02 if number == 1 else 0.0005), 2)
        for batch in made:
            torch.distributed.all_reduce(torch.ones(1))  # a step that all ranks are in
            time.sleep(0.004)
        report = made.report(ranks=True)
        results.put((named(report), report.verdict.cause and report.verdict.cause.why, report.verdict.sure))
        made.close()
        torch.distributed.destroy_process_group()

    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        processes = [context.Process(target=rank, args=(number, results)) for number in range(3)]
        for process in processes: process.start()
        for process in processes: print(results.get())
        for process in processes: process.join()
"""


def test_a_rank_that_straggles(busy_loop: None) -> None:
    lines = run_script(RANKS).out.splitlines()
    assert len(lines) == 3 and all("('rank', 'rank 1 waits" in line for line in lines), lines


SMALL = """
    import torch
    from conftest import mount_small_shm
    from tests.statistics.test_report_verdicts import Made, loader, run

    if __name__ == "__main__":
        mount_small_shm("4m")
        print(run(loader(Made(60, size=1 << 20), 2, 1), 0.002))
"""


def test_a_small_shm() -> None:
    ran = run_script(SMALL, flags=("-W", "ignore"))
    if "not permitted" in ran.out:
        pytest.skip("this user may not mount")
    assert "/dev/shm is too small" in ran.out and "slots of the ring moved to a memfd" in ran.out, ran.out + ran.err
