"""A report's advice can be followed: what a stream's loader would refuse is not proposed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

import shmloader
from shmloader.core.onlooker import Onlooker
from shmloader.statistics import causes
from shmloader.statistics.evidence import Evidence, Settings
from shmloader.statistics.stats import Stats, Times, WorkerStats

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:the epoch had no batch")

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
    assert not any(name in change for name in ("steal", "chunk_size"))


@pytest.mark.parametrize(("cause", "workers"), [(causes.no_workers, 0), (causes.work, 1)])
def test_a_stream_with_more_workers_must_be_shared(cause, workers):
    made = [worker(number, 10.0) for number in range(workers)]
    assert "get_worker_info" in cause(evidence(Settings(workers, is_stream=True), *made)).change
    assert "get_worker_info" not in cause(evidence(Settings(workers), *made)).change


# ------------------------------------------------------------------------------------------- parts that give nothing


class Parts(IterableDataset[int]):
    """Worker k gives so many samples."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.lengths[get_worker_info().id]))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lengths = (0,) * len(self.lengths)


def published(loader: Any) -> list[int]:
    return [worker.published for worker in loader.stats().workers]


def named(loader: Any) -> list[str]:
    """What the report says of workers without a batch."""
    return [note for note in loader.report().verdict.notes if "gave no batch" in note]


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, [4, 0]),
        ({"in_order": False}, [4, 0]),
        ({"persistent_workers": True}, [4, 0]),
        ({"batch_size": None}, [8, 0]),
        ({"device": "cpu"}, [4, 0]),
        ({"drop_last": True, "batch_size": 3}, [2, 0]),
        ({"drop_last": True, "batch_size": 9}, [0, 0]),
    ],
)
def test_the_end_of_a_stream_is_no_batch(options: dict[str, Any], batches: list[int]) -> None:
    last = 2 if "drop_last" in options else 0  # samples of the second worker
    with shmloader.DataLoader(Parts(8, last), **{"batch_size": 2, **options}, num_workers=2) as loader:
        for epoch in range(1, 3):
            list(loader)
            assert published(loader) == [epoch * count for count in batches]
        (note,) = named(loader)
        rows = [line.split()[:2] for line in str(loader.report()).splitlines() if line[:6].strip().isdecimal()]
    assert note.startswith("worker 1 gave" if batches[0] else "workers 0, 1 gave")
    assert ("num_workers=1" in note) == bool(batches[0])
    assert ("which drop_last=True drops" in note) == ("drop_last" in options)
    assert rows == [[str(worker), str(2 * count)] for worker, count in enumerate(batches)]


def test_a_worker_stays_named_in_the_next_epoch() -> None:
    with shmloader.DataLoader(Parts(200, 0), 2, num_workers=2, persistent_workers=True) as loader:
        list(loader)
        next(iter(loader))  # of worker 0: the end of worker 1's stream comes after it
        assert loader.state_dict()["streams"][0][1]["ended"] is False
        assert named(loader)[0].startswith("worker 1 gave")


def test_a_worker_without_a_batch_is_not_named_if_the_user_left_the_epoch() -> None:
    with shmloader.DataLoader(Parts(200, 200), 2, num_workers=2) as loader:
        next(iter(loader))
        assert named(loader) == []
        list(loader)
        assert named(loader) == []


def test_a_worker_that_gave_its_batches_before_a_resume_is_not_named() -> None:
    with shmloader.DataLoader(Parts(2, 6), 2, num_workers=2) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    with shmloader.DataLoader(Parts(2, 6), 2, num_workers=2) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []  # see load_state_dict()
        assert named(loader) == []


@pytest.mark.parametrize("schedule", ["round_robin", "steal"])
def test_more_workers_than_batches_of_a_dataset_with_indices_are_not_named(schedule: Any) -> None:
    with shmloader.DataLoader(range(4), 2, num_workers=3, schedule=schedule) as loader:
        list(loader)
        assert sum(published(loader)) == 2 and named(loader) == []


def test_an_onlooker_does_not_count_the_end_of_a_stream() -> None:
    with shmloader.DataLoader(Parts(8, 0), 2, num_workers=2, persistent_workers=True) as loader:
        list(loader)
        ring: Any = loader._iterator
        seen = Onlooker(ring._segment.fd)
        assert [lane.published for lane in seen.lanes()] == [4, 0]
