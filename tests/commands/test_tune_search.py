"""The search of `shmloader tune`, on machines that are formulas: what it measures, and what it picks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from shmloader.commands.tuning.measure import Sample, Setting
from shmloader.commands.tuning.search import GAIN, Row, Search

UNSTOLEN = {"schedule": "round_robin"}


class Model:
    """A machine whose measurements follow from a formula, and take the time that they are given."""

    def __init__(self, batch_s: Callable[[Setting], float], step_s: float = 0.0, beside: float = 0.2) -> None:
        self.batch_s, self.step_s, self.beside = batch_s, step_s, beside
        self.now = 0.0
        self.measured: list[Setting] = []

    def __call__(self, setting: Setting, seconds: float) -> Sample:
        self.now += seconds + self.beside
        self.measured.append(setting)
        took = self.batch_s(setting)
        if took == float("inf"):
            return Sample(failure="MemoryError: no")
        return Sample(1 / max(took, self.step_s), max(0.0, 1 - self.step_s / max(took, self.step_s)), 100)

    def search(
        self, most: int, weigh: Any = lambda setting: 1, budget: int = 1 << 40, seconds: float = 60.0, **space: Any
    ) -> Search:
        return Search(self, weigh, budget, seconds, most, clock=lambda: self.now, **space)


def test_workers_are_doubled_until_they_do_not_help_and_then_as_few_are_sought() -> None:
    model = Model(lambda value: 1.0 / min(value.num_workers, 11))
    search = model.search(64)
    assert search.run().setting in (Setting(11), Setting(12))
    assert max(value.num_workers for value in model.measured) == 32, "16 to 32 gain nothing, so 64 are never started"
    assert not search.untried and model.now < 60


def test_a_consumer_that_never_waits_ends_it() -> None:
    model = Model(lambda value: 0.8 / value.num_workers, step_s=0.25)
    search = model.search(64)
    assert search.run().setting == Setting(4)
    assert max(value.num_workers for value in model.measured) == 4
    assert {value.schedule for value in model.measured} == {"round_robin"}


def test_stealing_where_it_gains_with_fewer_workers_after_that() -> None:
    def batch_s(setting: Setting) -> float:
        return (0.5 if setting.schedule == "steal" else 1.0) / min(setting.num_workers, 8)

    assert Model(batch_s).search(64).run().setting == Setting(8, schedule="steal")
    assert Model(batch_s).search(64, fixed=UNSTOLEN).run().setting == Setting(8)
    assert Model(batch_s, step_s=0.0625).search(64).run().setting == Setting(8, schedule="steal")


def test_prefetch_and_chunks_where_they_gain() -> None:
    deep = Model(lambda setting: 1 / min(setting.num_workers, 4) / min(setting.prefetch_factor, 8))
    assert deep.search(64).run().setting == Setting(4, 8)
    cut = Model(lambda setting: (0.25 if setting.chunk_size else 1.0) / min(setting.num_workers, 4))
    assert cut.search(64, batch_size=32).run().setting == Setting(4, chunk_size=8)
    assert cut.search(64, batch_size=0).run().setting == Setting(4)


def test_what_gains_nothing_is_not_picked() -> None:
    model = Model(lambda setting: 1 / min(setting.num_workers, 4) * (0.99 if len(setting.options()) > 1 else 1))
    assert model.search(64, batch_size=32).run().setting == Setting(4)


def test_what_the_memory_does_not_hold_is_never_measured() -> None:
    def weigh(value: Setting) -> int:
        batches = max(2, value.prefetch_factor) if value.chunk_size else value.num_workers * value.prefetch_factor
        return batches * 100 + value.num_workers

    for batch_size in (0, 64):
        model = Model(lambda value: 1 / min(value.num_workers, 16))
        search = model.search(64, weigh, budget=1000, batch_size=batch_size)
        pick = search.run()
        assert all(weigh(value) <= 1000 for value in model.measured) and search.too_heavy
        assert pick.setting == (Setting(16, chunk_size=4) if batch_size else Setting(9, 1))


def test_a_setting_that_fails_is_passed_over() -> None:
    model = Model(lambda value: float("inf") if value.num_workers > 4 else 1 / value.num_workers)
    search = model.search(64)
    assert search.run().setting == Setting(4)
    assert any(row.failure == "MemoryError: no" for row in search.rows.values())
    with pytest.raises(RuntimeError, match="even one worker could be measured: MemoryError: no"):
        Model(lambda value: float("inf")).search(64).run()


def test_a_dataset_that_fails_later_is_named() -> None:
    measured: list[Setting] = []

    def measure(setting: Setting, seconds: float) -> Sample:
        measured.append(setting)
        return Sample(1.0, 1.0, 10) if len(measured) == 1 else Sample(0.0, 0.0, 0, "sample 7 cannot be read")

    with pytest.raises(RuntimeError, match="failed while it was measured: sample 7 cannot be read"):
        Search(measure, lambda setting: 1, 100, 60.0, 8).run()


def test_the_time_is_kept_and_what_it_did_not_allow_is_reported() -> None:
    model = Model(lambda setting: 1 / min(setting.num_workers, 64), beside=4.0)
    search = model.search(64, seconds=30, batch_size=64)
    search.run()
    assert model.now <= 31 and search.untried
    slow = Model(lambda setting: 8 / setting.num_workers)
    search = slow.search(64, seconds=60)
    search.run()
    assert slow.now <= 61


def test_a_measurement_that_the_end_cuts_short_does_not_count() -> None:
    model = Model(lambda setting: 1 / min(setting.num_workers, 4))
    search = model.search(64)
    measure = search.measure

    def ends(setting: Setting, seconds: float) -> Sample:
        if setting not in search.rows:
            return measure(setting, seconds)
        model.now = 61.0  # a worker took long to start
        return Sample(failure="only 0 batches came in the time allowed")

    search.measure = ends
    assert search.run().setting == Setting(4)
    assert all(row.runs == 1 and not row.failure for row in search.rows.values())


def test_an_option_that_is_given_is_not_varied() -> None:
    model = Model(lambda setting: 1 / setting.num_workers)
    fixed = {"num_workers": 3, "prefetch_factor": 4, "schedule": "steal"}
    assert model.search(3, fixed=fixed).run().setting == Setting(3, 4, "steal")
    assert set(model.measured) == {Setting(3, 4, "steal")}


def test_a_row_that_turns_out_too_heavy_is_not_picked() -> None:
    grown: list[int] = []
    model = Model(lambda setting: 1 / min(setting.num_workers, 8))
    search = model.search(8, lambda setting: setting.num_workers * (200 if grown else 1), budget=1000)
    measure = search.measure

    def grows(setting: Setting, seconds: float) -> Sample:
        if setting.num_workers == 8:
            grown.append(1)
        return measure(setting, seconds)

    search.measure = grows
    assert search.run().setting.num_workers <= 5


def test_slow_batches_are_given_the_time_for_three_of_one_worker() -> None:
    given: list[float] = []
    model = Model(lambda setting: 2.5 / setting.num_workers)
    search = model.search(4)
    measure = search.measure
    search.measure = lambda setting, seconds: given.append(seconds) or measure(setting, seconds)  # type: ignore[func-returns-value]
    search.run()
    assert given[0] == 2.0 and set(given[1:-1]) == {7.5}


def test_contenders_are_measured_again_in_turns() -> None:
    model = Model(lambda setting: 1 / min(setting.num_workers, 4))
    search = model.search(16, fixed=UNSTOLEN)
    search.run()
    last = model.measured[-4:]
    assert len(set(last)) > 1 and all(one != other for one, other in itertools.pairwise(last))


def test_unusual_options_are_measured_again_beside_the_usual_ones() -> None:
    model = Model(
        lambda setting: 1.25 if setting == Setting(1) and model.measured.count(setting) == 1 else 1.0
    )  # the first was cold
    search = model.search(1)
    assert search.run().setting == Setting(1)
    assert search.rows[Setting(1)].runs > 2


def test_measurements_that_differ_tell_less_apart() -> None:
    search = Model(lambda setting: 1.0).search(8)
    for workers, each in {4: 1.045, 8: 1.0}.items():
        search.rows[Setting(workers)] = Row(Setting(workers), 1)
        for _ in range(5):
            search.rows[Setting(workers)].add(Sample(1 / each, 0.0, 9))
    assert search.pick().setting == Setting(8)
    for each in (0.9, 1.1):
        search.rows[Setting(8)].add(Sample(1 / each, 0.0, 9))
    assert search.pick().setting == Setting(4), "20 % apart, so their median is sure to 5 %"


def test_noise_does_not_make_a_small_gain_a_pick() -> None:
    noise = itertools.cycle([1.0, 1.01, 0.99, 1.015, 0.985])
    model = Model(lambda setting: next(noise) / min(setting.num_workers, 8))
    assert 6 <= model.search(64).run().setting.num_workers <= 9
    assert GAIN > 0.03
