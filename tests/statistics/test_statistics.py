"""loader.stats(): what is counted, by whom, and what an onlooker sees of it."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy
import pytest
import torch
from conftest import Items, iterate
from gpu_double import installed
from hostile import BothSides, entry_at, poke
from torch.utils.data import IterableDataset

import shmloader
from shmloader.core.figures import BATCHES, CLAIM, EMPTY, LENT, READY_BATCHES, SOURCE_WAIT, WAIT, Figures, Log
from shmloader.core.onlooker import Onlooker
from shmloader.core.ring import FILLED
from shmloader.statistics.account import Account, account_of
from shmloader.system import user_line

MOST = (1 << 64) - 1

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Range(torch.utils.data.Dataset):
    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index])


class Stream(IterableDataset):
    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return iter(range(self.length))


# ---------------------------------------------------------------------------------------------------------- histograms


def test_percentiles_are_right_to_three_percent() -> None:
    figures = Figures()
    times = (10 ** numpy.random.default_rng(1).uniform(3, 11, 3000)).astype(int)
    for each in times.tolist():
        figures.add_time(WAIT, each)
    assert figures.count(WAIT) == 3000 and figures.seconds(WAIT) == pytest.approx(times.sum() / 1e9)
    for share in (0.01, 0.5, 0.9, 0.99, 1):
        right = numpy.quantile(times, share, method="inverted_cdf") / 1e9
        assert figures.percentile(WAIT, share) == pytest.approx(right, rel=0.033)


@pytest.mark.parametrize("time", [0, 63, 64, 1023, 1024, 1087, 1088, 1 << 40, MOST >> 1, MOST])
def test_any_time_has_a_bucket(time: int) -> None:
    figures = Figures()
    figures.add_time(WAIT, time)
    found = figures.percentile(WAIT, 0.5) * 1e9
    assert found == pytest.approx(min(time, 1 << 41), rel=0.033, abs=32)


# ------------------------------------------------------------------------------------- one batch, step by step


def made(ring: BothSides) -> None:
    """Claim, fetch, collate and publish what is open."""
    ring.claim_again()
    ring.worker.fetched()
    ring.writer.write(torch.ones(3))
    ring.worker.publish(FILLED)


def test_each_batch_has_its_times_in_order() -> None:
    with BothSides() as ring:
        turns = ring.trainer.turns
        ring.trainer.open(0, [1, 2])
        made(ring)
        turns.asked()
        batch = ring.take()
        turns.handed_out()
        (taken,) = turns.meter.log.since()
        assert taken.dropped_at == 0
        del batch
        (taken,) = turns.meter.log.since()
        times = taken[2:10]
        assert all(times) and sorted(times) == list(times)
        assert (taken.batch, taken.sequence, taken.worker, taken.chunk, taken.samples) == (0, 0, 0, 0, 2)
        assert turns.meter.figures.count(LENT) == 1 and sum(turns.meter.figures.held()) == 1


def test_ready_batches_are_counted_for_each_call() -> None:
    """The first call finds two ready, the second one of these two, the third none."""
    with BothSides() as ring:
        turns, figures = ring.trainer.turns, ring.trainer.turns.meter.figures
        for task in range(2):
            ring.trainer.open(0, task)
            made(ring)
        for _ in range(3):
            turns.asked()
            if ring.trainer.sequences.in_flight == 0:
                ring.trainer.open(0, 2)
                made(ring)
            ring.take()
            turns.handed_out()
            assert turns.meter.log.since()[-1].handed_out_at
        assert figures.amount(READY_BATCHES) == 3
        assert figures.amount(EMPTY) == 1


def test_a_wait_is_divided_by_what_the_batch_was_in() -> None:
    with BothSides() as ring:
        turns = ring.trainer.turns
        turns.asked()
        steps = [lambda: ring.trainer.open(0, 1), ring.claim_again, ring.worker.fetched]
        steps += [lambda: (ring.writer.write(torch.ones(3)), ring.worker.publish(FILLED))]
        for step in steps:
            time.sleep(0.002)
            step()
        time.sleep(0.002)
        ring.take()
        turns.handed_out()
        waits = shmloader.statistics.figures.WAITS
        spent = {name: turns.meter.figures.amount(kind) / 1e9 for name, kind in waits.items()}
        assert all(spent[name] >= 0.002 for name in ("open", "claim", "fetch", "collate", "wake"))
        assert sum(spent.values()) == pytest.approx(turns.meter.figures.seconds(WAIT), abs=1e-6)
        assert turns.meter.now().of_worker(0)["waited_ns"] >= 0.01 * 1e9


@pytest.mark.parametrize("value", [0, 1, MOST])
@pytest.mark.parametrize("at", [8, 64, 72])  # ring_entry's claimed_at, fetched_at, published_at
def test_a_stamp_that_was_overwritten_does_no_harm(at: int, value: int) -> None:
    with BothSides() as ring:
        ring.trainer.open(0, 1)
        made(ring)
        poke(ring.segment, entry_at(ring.segment, 0, "word")[0] + at, 8, value)
        ring.take()
        (taken,) = ring.trainer.turns.meter.log.since()
        assert sorted(taken[2:6]) == list(taken[2:6]) and taken.published_at <= taken.taken_at
        assert ring.trainer.turns.meter.figures.seconds(CLAIM) < 100


def test_the_log_keeps_the_last_ones() -> None:
    with BothSides() as ring:
        log = ring.trainer.turns.meter.log
        for k in range(log.size + 3):
            ring.fill(torch.tensor([k]))
            ring.take()
        assert [each.sequence for each in log.since()] == list(range(3, log.size + 3))
        log.keep(2 * log.size)
        assert log.since(log.count - 2)[0].sequence == log.count - 2
        for k in range(5):
            ring.fill(torch.tensor([k]))
            ring.take()
        assert [each.sequence for each in log.since()] == list(range(3, log.count))
        usual = log.size // 2
        log.keep(0)
        assert log.size == usual and [each.sequence for each in log.since()] == list(
            range(log.count - usual, log.count)
        )
        ring.fill(torch.tensor([0]))
        ring.take()
        assert [each.sequence for each in log.since()] == list(range(log.count - usual, log.count))
    assert Log(0).since() == []


# -------------------------------------------------------------------------------------------------------- a loader's


@pytest.mark.parametrize("options", [{}, {"schedule": "steal"}, {"chunk_size": 1}, {"in_order": False}], ids=str)
def test_what_a_loader_counts(options: dict[str, Any]) -> None:
    loader = shmloader.DataLoader(Range(), batch_size=4, num_workers=2, **options)
    for _ in range(2):
        assert len(iterate(loader)) == 6
    stats = loader.stats()
    assert (stats.batches, stats.taken_batches, stats.samples) == (12, 12, 48)
    assert (stats.wait.count, stats.step.count, stats.first_wait.count) == (12, 10, 2)
    assert stats.batches_per_s > 0 and stats.samples_per_s == pytest.approx(4 * stats.batches_per_s)
    assert 0 < stats.input_wait <= 1 and 0 <= stats.empty_share <= 1
    published = 48 if options.get("chunk_size") else 12
    assert stats.fetch.count == stats.collate.count == stats.claim_wait.count == published
    assert sum(worker.published for worker in stats.workers) == published
    assert stats.fetch.total_s == pytest.approx(sum(worker.fetch_s for worker in stats.workers), rel=1e-6)
    assert stats.why_not_ring is None and stats.ring_bytes == 0  # its rings are closed
    # all parts of the trainer's wait together are less than the wait, which includes iter() in the first calls
    assert sum(stats.waits.values()) <= stats.wait.total_s


def test_since_when() -> None:
    loader = shmloader.DataLoader(Range(), batch_size=4, num_workers=1)
    iterate(loader)
    assert loader.stats("last").batches == 6
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    assert [loader.stats(since).batches for since in ("start", "epoch", "last", "last")] == [8, 2, 2, 0]
    assert loader.stats().ring_bytes > 0
    del iterator
    with pytest.raises(ValueError, match="since should be 'start', 'epoch' or 'last', but got since='week'"):
        loader.stats("week")


@pytest.mark.parametrize(
    ("workers", "why"),
    [(0, "num_workers is 0"), pytest.param(1, "DataPipes", marks=pytest.mark.off_the_ring)],
)
def test_off_the_ring_the_users_turns_are_measured(workers: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())
    dataset: Any = Range()
    if workers:
        dataset = torch.utils.data.datapipes.iter.IterableWrapper(range(24))
    with pytest.warns(RuntimeWarning) if workers else pytest.MonkeyPatch.context():
        loader = shmloader.DataLoader(dataset, batch_size=4, num_workers=workers)
        iterate(loader)
    stats = loader.stats("epoch")
    assert (stats.wait.count, stats.step.count, stats.first_wait.count) == (6, 5, 1)
    assert why in stats.why_not_ring
    assert (stats.fetch, stats.workers, stats.waits, stats.ready_batches, stats.lent) == (None,) * 5
    assert "loader/wait_mean_s" in stats.to_dict() and not any("fetch" in key for key in stats.to_dict())


def test_copies_and_how_many_batches_the_loop_holds() -> None:
    loader = shmloader.DataLoader(Range(), num_workers=1, spare_slots=3)
    list(loader)
    assert loader.stats("epoch").copied_spare == 21
    assert loader.stats("epoch").lent.count == 3  # a copy is nobody's slot
    for batch in loader:
        held = batch
    del batch, held
    assert loader.stats("epoch").held_batches == 2 and loader.stats("epoch").copied_spare == 0
    window: list[Any] = []
    for batch in loader:
        window = [*window[-1:], batch]
    assert loader.stats("epoch").held_batches == 3
    assert loader.stats("epoch").copied_spare == 0


def slow_collate(samples: Any) -> Any:
    time.sleep(0.002)
    return samples


@pytest.mark.parametrize("dataset", [Range(4), Stream(4)], ids=["map", "stream"])
@pytest.mark.parametrize("batch_size", [2, None])
def test_fetch_and_collate_are_distinguished(dataset: Any, batch_size: int | None) -> None:
    loader = shmloader.DataLoader(dataset, batch_size=batch_size, num_workers=1, collate_fn=slow_collate)
    count = len(iterate(loader))
    stats = loader.stats()
    assert stats.collate.count == count and stats.collate.total_s >= 0.002 * count


def test_an_epoch_left_half_way() -> None:
    loader = shmloader.DataLoader(Range(), batch_size=4, num_workers=1, persistent_workers=True)
    next(iter(loader))
    iterator = iter(loader)
    assert len(list(iterator)) == 6
    stats = loader.stats()
    assert stats.batches == 7 < stats.taken_batches and stats.first_wait.count == 2 and stats.step.count == 5
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_next_that_raised_gave_no_batch(workers: int) -> None:
    def fails() -> None:
        raise OSError("it failed")

    with shmloader.DataLoader(Items([1, fails, 3, fails, 5, fails]), num_workers=workers) as loader:
        assert len(iterate(loader)) == 6
        stats = loader.stats()
    assert stats.batches == stats.wait.count == 3
    assert stats.step.count == 0  # what lies behind an error is no step of the loop's


def test_two_looks_with_last_leave_nothing_out() -> None:
    class Growing:
        """Something is counted between any two looks."""

        def __init__(self) -> None:
            self.figures = Figures()

        def now(self) -> Figures:
            self.figures.add(BATCHES)
            return self.figures.copy()

    account: Any = Account(0)
    account.meter = Growing()
    account.mark("last")
    before = account.meter.figures.amount(BATCHES)
    seen = sum(account.figures("last")[1].amount(BATCHES) for _ in range(5))
    assert seen == account.meter.figures.amount(BATCHES) - before


def test_a_death_is_counted() -> None:
    class Dies(Range):
        def __getitem__(self, index: int) -> Any:
            if index == 5 and not os.path.exists(path):
                open(path, "w").close()
                os._exit(1)
            return index

    path = os.path.join(os.environ["SHMLOADER_TEST_DIR"], f"died_{os.getpid()}")
    loader = shmloader.DataLoader(Dies(), num_workers=1, on_worker_death="respawn")
    assert len(iterate(loader)) == 24
    assert loader.stats().worker_deaths == 1
    assert loader.stats().workers[0].published == 24


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    yield from installed(monkeypatch)


def test_with_a_device_the_users_turns_count(gpu: Any) -> None:
    """A thread asks the ring, and the user asks the thread; one copy in 16 is timed."""
    double = gpu()
    loader = shmloader.DataLoader(Range(26), num_workers=1, device="cuda")
    iterator = iter(loader)
    for _ in range(25):
        next(iterator)
    seen = onlooker(iterator._source._segment).totals()
    assert seen.user_stepped_ns > 0 and seen.user_waited_ns > 0
    assert len(list(iterator)) == 1
    stats = loader.stats()
    assert (stats.batches, stats.wait.count, stats.step.count, stats.first_wait.count) == (26, 26, 25, 1)
    assert stats.taken_batches == 26 and stats.to_device.count == 2
    assert double.waits == 4  # until the stream was idle, and until the copies were over
    assert account_of(loader).meter.figures.count(SOURCE_WAIT) == 26
    loader.close()


def test_an_account_goes_with_its_loader() -> None:
    from shmloader.statistics import account

    loader = shmloader.DataLoader(Range(), num_workers=1)
    iterate(loader)
    assert loader in account._accounts
    assert "_turns" not in vars(loader) and not any("account" in name for name in vars(loader))
    meter = account_of(loader).meter
    assert not meter.turns
    del loader
    assert all(each.meter is not meter for _, each in account._accounts.items())


def test_to_dict_is_flat_and_of_floats() -> None:
    loader = shmloader.DataLoader(Range(), num_workers=1)
    iterate(loader)
    flat = loader.stats().to_dict("input/")
    assert all(type(value) is float and key.startswith("input/") for key, value in flat.items())
    assert {"input/batches", "input/wait_p99_s", "input/waits_claim_s", "input/workers_busy_s"} <= set(flat)


# ------------------------------------------------------------------------------------------------------ an onlooker


def onlooker(segment: Any) -> Onlooker:
    fd = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Onlooker(fd)
    finally:
        os.close(fd)


def test_an_onlooker_sees_what_both_sides_do() -> None:
    with BothSides() as ring:
        ring.segment.format(ring.trainer, b"Range" * 100)
        seen = onlooker(ring.segment)
        assert seen.totals().label == ("Range" * 100)[:127] and seen.trainer == os.getpid()
        assert seen.in_flight() == [] and seen.lanes()[0].doing == "starts" and seen.lanes()[0].pid == os.getpid()
        ring.trainer.open(0, [4, 5])
        assert [(each.state, each.owner, each.batch) for each in seen.in_flight()] == [("open", 0, 0)]
        ring.trainer.turns.asked()
        assert seen.totals().asked_at
        ring.claim_again()
        assert seen.in_flight()[0].state == "claimed" and seen.lanes()[0].doing == "fetches"
        ring.worker.fetched()
        assert seen.lanes()[0].doing == "collates"
        ring.writer.write(torch.ones(3))
        ring.worker.publish(FILLED)
        assert seen.in_flight()[0].state == "ready" and seen.lanes()[0].doing == "waits"
        batch = ring.take()
        ring.trainer.turns.handed_out()
        totals = seen.totals()
        assert (totals.taken, totals.samples, totals.bytes, totals.lent) == (1, 2, 12, 1)
        assert totals.asked_at == 0 and totals.waited_ns > 0
        assert seen.in_flight() == [] and seen.lanes()[0].published == 1
        assert min(seen.slot_bytes()[:4]) >= 16 << 10
        del batch
        assert not seen.closed
    assert seen.closed


def test_an_onlooker_refuses_what_is_no_ring() -> None:
    fd = os.memfd_create("none")
    try:
        with pytest.raises(ValueError, match="this is no ring: its words take 640 bytes, and it has 0"):
            Onlooker(fd)
        os.ftruncate(fd, 1 << 16)
        with pytest.raises(ValueError, match="this is no ring, or it is closed"):
            Onlooker(fd)
        os.pwrite(fd, b"shmrin\0\0" + b"\1", 0)
        with pytest.raises(ValueError, match="this is no ring: it begins with 0x"):
            Onlooker(fd)
    finally:
        os.close(fd)
    with BothSides() as ring:
        for at, value, says in (
            (8, 3, "of version 3"),
            (12, 0, "names 0 workers"),
            (16, MOST, "names 1 workers, 4294967295"),
        ):
            before = os.pread(ring.segment.fd, 4, at)
            poke(ring.segment, at, 4, value)
            with pytest.raises(ValueError, match=says):
                onlooker(ring.segment)
            os.pwrite(ring.segment.fd, before, at)
