"""The simulation of large clusters: nothing is lost in it, and each thing in it limits as it should."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")
pytest.importorskip("simpy")

import simpy

from bench import commands
from bench.__main__ import main
from bench.core.question import Turn
from bench.scale.links import Cores, Line
from bench.scale.parts import PARTS
from bench.scale.plan import Death, Plan
from bench.scale.question import summary
from bench.scale.ring import Ring
from bench.scale.simulate import RING, Result, simulate
from bench.scale.troubles import AWAY, EVERY, back_at, slow_ones, vanishing
from bench.scale.workers import FarWorker

SIZE, MAKING = 1e6, 0.1
DAY = 86_400.0


def run(far: int, **others: Any) -> Result:
    others = {"far_per_node": 1, "seconds": 20.0, **others}
    return simulate(Plan(others.pop("batch_bytes", SIZE), MAKING, far, **others))


def in_order(result: Result) -> bool:
    return all(order == list(range(len(order))) for order in result.orders)


# -------------------------------------------------------------------------------------------------------- each batch


@pytest.mark.parametrize("steals", [True, False])
def test_each_batch_comes_once_and_in_order_whatever_happens(steals: bool) -> None:
    deaths = tuple(Death(0.73 * k, k % 6, away=0.31 * (1 + k % 3), noticed=0.2 * (k % 2)) for k in range(60))
    result = run(
        12,
        trainers=2,
        local=1,
        steals=steals,
        far_per_node=2,
        jitter=0.5,
        slow=frozenset({3, 4}),
        latency=0.02,
        bandwidth=60e6,
        deaths=_apart(deaths),
        seconds=60.0,
    )
    assert in_order(result) and result.remade > 50
    assert all(rate > 10 for rate in result.rates)  # a batch that is lost stops its trainer for ever


def _apart(deaths: tuple[Death, ...]) -> tuple[Death, ...]:
    """Those of a node that is there when it dies."""
    chosen, is_back = [], dict.fromkeys(range(6), 0.0)
    for death in deaths:
        if death.at > is_back[death.node]:
            is_back[death.node] = death.at + max(death.away, death.noticed)
            chosen.append(death)
    return tuple(chosen)


def test_a_batch_that_is_published_twice_is_an_error() -> None:
    env = simpy.Environment()
    ring = Ring(env, workers=2, under_way=4, steals=True)
    ring.publish(1)
    with pytest.raises(RuntimeError, match="already been triggered"):
        ring.publish(1)


def test_a_batch_that_is_opened_again_comes_before_all_later_ones() -> None:
    ring = Ring(simpy.Environment(), workers=2, under_way=4, steals=True)
    assert [ring.claim(0).value, ring.claim(1).value] == [0, 1]
    ring.open_again(0)
    assert [ring.claim(1).value, ring.claim(1).value] == [0, 2]


def test_a_batch_is_not_lost_with_a_worker_that_was_about_to_claim_it() -> None:
    env = simpy.Environment()
    ring = Ring(env, workers=1, under_way=0, steals=True)
    line, cores = Line(env, math.inf), Cores(env, 1)
    worker = FarWorker(env, Plan(SIZE, MAKING, 1), ring, 0, lambda: MAKING, line, line, cores)
    env.run(1.0)  # its stand-in sleeps on the ring
    ring.open_next()
    while not worker._asked.triggered:
        env.step()  # until the claim has succeeded, and the stand-in has not run yet
    worker.die(noticed=0.0)
    env.run(2.0)
    assert ring.remade == 1 and ring.claim(0).value == 0


def test_the_ring_opens_no_more_than_it_has_room_for() -> None:
    # the loop takes nothing for a day, so the workers fill the ring and stop
    for plan, room in (
        (Plan(SIZE, MAKING, 3, steals=False), 6),
        (Plan(SIZE, MAKING, 3, steals=True), 24),
        (Plan(SIZE, MAKING, 3, steals=True, deepens=False), 6),
        (Plan(32 * 2**20, MAKING, 3, steals=True), 8),
    ):
        assert plan.under_way(3) == room
        result = simulate(replace(plan, loop=DAY, warm_up=1e-9, seconds=100.0))
        assert result.orders == [[0]]
        assert result.busy["far CPUs"] * 100.0 * 3 / MAKING == pytest.approx(room + 1)  # one was taken at once


# -------------------------------------------------------------------------------------------------- what limits a rate


@pytest.mark.parametrize("steals", [True, False])
def test_so_many_workers_give_so_many_times_the_rate_until_the_network_is_full(steals: bool) -> None:
    rates = {far: run(far, steals=steals, bandwidth=41e6, prefetch_factor=4).rate for far in (1, 2, 4, 8)}
    assert [rates[far] for far in (1, 2, 4)] == pytest.approx([10, 20, 40], rel=0.02)
    assert rates[8] == pytest.approx(41, rel=0.02)


def test_the_rate_of_a_full_network_is_its_bandwidth_over_the_bytes_of_a_batch() -> None:
    for batch_bytes, bandwidth in ((1e6, 10e6), (1e6, 25e6), (4e6, 25e6)):
        result = run(6, batch_bytes=batch_bytes, bandwidth=bandwidth, far_bandwidth=math.inf)
        assert result.rate == pytest.approx(bandwidth / batch_bytes, rel=0.02)
        assert result.bottleneck == "trainer's network" and result.busy["trainer's network"] == pytest.approx(
            1, rel=0.02
        )


def test_far_workers_of_a_node_share_its_network() -> None:
    shared, apart = (run(4, far_bandwidth=20e6, far_per_node=each) for each in (4, 1))
    assert shared.rate == pytest.approx(20, rel=0.02) and shared.bottleneck == "far networks"
    assert apart.rate == pytest.approx(40, rel=0.02) and apart.bottleneck == "far CPUs"


def test_trainers_of_a_node_share_its_network() -> None:
    shared, apart = (run(8, trainers=2, trainers_per_node=each, bandwidth=30e6) for each in (2, 1))
    assert shared.rates == pytest.approx([15, 15], rel=0.03)
    assert apart.rates == pytest.approx([30, 30], rel=0.03)


def test_stand_ins_share_the_cores_of_their_node() -> None:
    receiving = 0.05 / SIZE  # seconds a byte: a core receives 20 batches a second
    rates = [run(8, cores=cores, receiving=receiving).rate for cores in (1, 2, 8)]
    assert rates == pytest.approx([20, 40, 80], rel=0.02)
    assert run(8, cores=1, receiving=receiving).bottleneck == "trainer's cores"


def test_a_loop_that_asks_seldom_is_the_bottleneck() -> None:
    result = run(8, loop=0.05)
    assert result.rate == pytest.approx(20, rel=0.02) and result.bottleneck == "loop"


def test_one_request_at_a_time_waits_for_the_network_and_several_do_not() -> None:
    one, two = (run(4, latency=0.05, in_flight=each) for each in (1, 2))
    assert one.rate == pytest.approx(4 / (MAKING + 2 * 0.05), rel=0.02) and one.bottleneck == RING
    assert two.rate == pytest.approx(4 / MAKING, rel=0.02)
    # two batches in each time that a request and its answer travel, and no more
    assert run(4, latency=0.2).rate == pytest.approx(4 * 2 / (MAKING + 2 * 0.2), rel=0.02)


def test_a_batch_is_there_with_its_last_byte() -> None:
    for networks in ({"bandwidth": 10e6, "far_bandwidth": math.inf}, {"far_bandwidth": 10e6}, {"bandwidth": 10e6}):
        assert run(1, in_flight=1, **networks).rate == pytest.approx(1 / (MAKING + 0.1), rel=0.02)


def test_a_far_worker_makes_one_batch_while_another_one_is_sent_and_no_more() -> None:
    result = run(1, in_flight=8, bandwidth=1.0, warm_up=1e-9)
    assert result.busy["far CPUs"] * 20.0 == pytest.approx(2 * MAKING)


def test_in_turns_a_request_for_which_nothing_was_open_waits_for_the_next_batch() -> None:
    # With two batches open for each worker, the second request finds none open until the loop has taken a batch.
    narrow = {"latency": 0.05, "steals": False}
    assert run(4, **narrow).rate < 0.7 * 4 / MAKING
    assert run(4, **narrow, prefetch_factor=4).rate == pytest.approx(4 / MAKING, rel=0.03)


def test_requests_that_a_shallow_ring_cannot_serve_leave_workers_idle() -> None:
    shallow = {"deepens": False, "jitter": 0.05, "seconds": 8.0}
    few, many = (run(8, in_flight=each, **shallow).rate for each in (2, 8))
    assert many < 0.8 * few
    assert run(8, in_flight=8, prefetch_factor=8, **shallow).rate > 0.95 * 80


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_in_turns_all_wait_for_a_slow_worker_and_with_stealing_none_does() -> None:
    slow = {"slow": frozenset({0}), "slow_factor": 5.0}
    assert run(4, steals=False, **slow).rate == pytest.approx(4 * 2, rel=0.05)
    assert run(4, steals=True, **slow).rate == pytest.approx(3 * 10 + 2, rel=0.05)


@pytest.mark.parametrize("steals", [True, False])
def test_batches_of_a_worker_that_vanishes_are_made_again(steals: bool) -> None:
    death = Death(5.03, 0, away=math.inf if steals else 1.0)
    result = run(2, steals=steals, deaths=(replace(death, away=min(death.away, DAY)),))
    assert result.remade == 2  # its requests
    assert in_order(result) and len(result.orders[0]) > 150


def test_in_turns_the_loop_stands_while_a_worker_is_away_and_with_stealing_others_make_its_share() -> None:
    death = (Death(5.0, 0, away=10.0),)
    stealing, in_turns = (run(4, steals=steals, deaths=death).rate for steals in (True, False))
    assert stealing == pytest.approx((40 * 20 - 10 * 10) / 20, rel=0.05)
    assert in_turns == pytest.approx(40 * 10 / 20, rel=0.1)


def test_the_loop_stands_until_a_silent_death_is_noticed() -> None:
    plan = {"deepens": False, "seconds": 30.0}
    at_once, late = (run(4, deaths=(Death(5.0, 0, 1.0, noticed),), **plan) for noticed in (0.0, 10.0))
    assert late.rate == pytest.approx(at_once.rate - 40 * 9.5 / 30, rel=0.05)
    assert in_order(late)


def test_slow_ones_and_deaths_are_as_frequent_as_they_should_be() -> None:
    assert len(slow_ones(1000)) == 50
    deaths = vanishing(1000, seconds=3000.0)
    assert len(deaths) == pytest.approx(1000 * (3000 + AWAY) / (EVERY + AWAY), rel=0.1)
    assert sum(death.at == 0 for death in deaths) == pytest.approx(1000 * AWAY / (EVERY + AWAY), rel=0.3)
    for _, of_one in itertools.groupby(deaths, key=lambda death: death.node):
        times = list(of_one)
        assert all(one.at + one.away < other.at for one, other in itertools.pairwise(times))


def test_a_killed_worker_is_back_after_its_longest_pause() -> None:
    assert back_at([0.5, 1.0, 1.04, 4.0, 4.1, 4.2], killed=1.02, end=5.0) == 4.0
    assert back_at([0.5, 1.0, 4.0, 4.1, 4.2], killed=1.02, end=5.0) == 4.0
    assert back_at([0.5, 1.0], killed=1.02, end=5.0) == 5.0


# -------------------------------------------------------------------------------------------------------- the command


def test_the_cluster_is_measured_again_in_each_round_and_all_else_is_simulated_once() -> None:
    asked = commands.QUESTIONS["scale"](commands.parser().parse_args(["scale"]))
    first, second = asked.turns(0), asked.turns(1)
    assert [turn.labels["part"] for turn in second] == ["cluster"]
    assert {turn.labels["part"] for turn in first} == set(PARTS)
    labels = [tuple(turn.labels.items()) for turn in first]
    assert len(set(labels)) == len(labels)
    for turn in first:
        module, name = turn.function.split(":")
        if module != "bench.scale.cluster":  # which needs Ray
            inspect.signature(getattr(importlib.import_module(module), name)).bind(**turn.arguments)


def test_the_difference_is_that_of_the_median() -> None:
    rounds = [{"part": "cluster", "round": at, "cases": {"1 far": {"measured": rate, "simulated": 11.0}}}
              for at, rate in enumerate((9.0, 10.0, 12.0))]  # fmt: skip
    found = summary(rounds)["cluster"]["1 far"]
    assert found["measured"] == {"median": 10.0, "min": 9.0, "max": 12.0}
    assert found["differs"] == pytest.approx(0.1)


def test_it_simulates_prints_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(turn: Turn) -> dict[str, Any]:
        if turn.labels["part"] == "cluster":
            return {"cases": {"6 far": {"measured": 58.0, "simulated": 60.0}}}
        module, name = turn.function.split(":")
        found: dict[str, Any] = getattr(importlib.import_module(module), name)(**turn.arguments)
        return found

    monkeypatch.setattr(Turn, "measure", measured)
    monkeypatch.setattr("bench.scale.curves.FAR", (1, 2))
    monkeypatch.setattr("bench.scale.curves.LATENCIES", (0.1,))
    monkeypatch.setattr("bench.scale.curves.REQUESTS", (1,))
    monkeypatch.setattr("bench.scale.curves.TRAINERS", 2)
    monkeypatch.setattr("bench.scale.curves.FAR_OF_ALL", 20)
    monkeypatch.setattr("bench.scale.clusters.CALM", 0.2)
    parts = [part for part in PARTS if part != "silence"]
    options = ["--seconds", "0.5", "--kinds", "uint8", "--parts", *parts]
    assert main(["scale", *options, "--into", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "scale.json").read_text())["summary"]
    assert found["far"][0]["points"][1]["rate"] == pytest.approx(2 * found["far"][0]["points"][0]["rate"], rel=0.3)
    assert {each["trouble"] for each in found["fleet"]} == {"none", "slow", "vanish"}
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    assert "64 trainers" in capsys.readouterr().out


def test_without_ray_the_rest_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.scale.question.RAY", tmp_path / "no" / "python")
    assert main(["scale", "--parts", "cluster", "--into", str(tmp_path)]) == 0
    assert "Ray is not installed here" in capsys.readouterr().out
