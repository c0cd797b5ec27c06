"""A report's advice can be followed: what a stream's loader would refuse is not proposed."""

from __future__ import annotations

import pytest

from shmloader.statistics import causes
from shmloader.statistics.evidence import Evidence, Settings
from shmloader.statistics.stats import Stats, Times, WorkerStats

STREAM = Settings(num_workers=2, is_stream=True)


def worker(number, busy_s, **more):
    found = {"idle_s": 0.0, "slot_wait_s": 0.0, "waited_for_s": 0.0, "cpu_share": 0.1, "delayed_share": 0.0, **more}
    return WorkerStats(number, 100, busy_s, busy_s, 0.0, **found)


def evidence(settings, *workers, **more):
    found = {"wait": Times(100, 10.0, 0.1), "step": Times(99, 1.0, 0.01), "first_wait": Times(), **more}
    stats = Stats("start", 11.0, None, settings.num_workers, 100, 9.0, 0.9, **found, taken_batches=100, workers=workers)
    return Evidence(stats, settings, cores=2.0)


@pytest.mark.parametrize(
    ("cause", "of"),
    [
        (causes.worker, evidence(STREAM, worker(0, 2.0), worker(1, 12.0, waited_for_s=10.0))),
        (causes.order, evidence(STREAM, worker(0, 5.0, idle_s=6.0), worker(1, 5.0, idle_s=6.0))),
        (causes.first_batch, evidence(STREAM, first_wait=Times(4, 9.9, 2.5), starting_s=9.95)),
    ],
)
def test_a_stream_is_not_advised_an_option_that_it_refuses(cause, of):
    change = cause(of).change
    assert not any(name in change for name in ("steal", "chunk_size", "prefetch_epochs"))


@pytest.mark.parametrize(("cause", "workers"), [(causes.no_workers, 0), (causes.work, 1)])
def test_a_stream_with_more_workers_must_be_shared(cause, workers):
    made = [worker(number, 10.0) for number in range(workers)]
    assert "get_worker_info" in cause(evidence(Settings(workers, is_stream=True), *made)).change
    assert "get_worker_info" not in cause(evidence(Settings(workers), *made)).change
