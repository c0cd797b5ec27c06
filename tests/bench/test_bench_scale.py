"""The simulation of large clusters: nothing is lost in it, and each thing in it limits as it should."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")
pytest.importorskip("simpy")

import simpy

from bench import commands, scale
from bench.__main__ import main
from bench.core.question import Turn
from bench.scale import Death, Far, Line, Plan, Ring, simulate

SIZE, MAKING = 1e6, 0.1
DAY = 86_400.0


def run(far: int, **others: Any) -> list[float]:
    """The batches a second of each trainer."""
    others = {"far_per_node": 1, "seconds": 20.0, **others}
    others["far_bandwidth"] = others.get("far_bandwidth", others.get("bandwidth", math.inf))
    return [ring.rate for ring in simulate(Plan(others.pop("batch_bytes", SIZE), MAKING, far, **others))]


def rate(far: int, **others: Any) -> float:
    (found,) = run(far, **others)
    return found


# -------------------------------------------------------------------------------------------------------- each batch


@pytest.mark.parametrize("steals", [True, False])
def test_no_batch_is_lost_or_published_twice_whatever_happens(steals: bool) -> None:
    # one that is lost stops its trainer for ever, and one that is published twice is an error
    deaths = tuple(Death(0.73 * k, k % 6, away=0.31 * (1 + k % 3), noticed=0.2 * (k % 2)) for k in range(60))
    rates = run(
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
    assert all(each > 10 for each in rates)


def _apart(deaths: tuple[Death, ...]) -> tuple[Death, ...]:
    """Those of a node that is there when it dies."""
    chosen, is_back = [], dict.fromkeys(range(6), 0.0)
    for death in deaths:
        if death.at > is_back[death.node]:
            is_back[death.node] = death.at + max(death.away, death.noticed)
            chosen.append(death)
    return tuple(chosen)


def test_a_batch_that_is_published_twice_is_an_error() -> None:
    ring = Ring(simpy.Environment(), Plan(SIZE, MAKING, 2), workers=2)
    ring.made[1].succeed()
    with pytest.raises(RuntimeError, match="already been triggered"):
        ring.made[1].succeed()


def test_a_batch_that_is_opened_again_comes_before_all_later_ones() -> None:
    ring = Ring(simpy.Environment(), Plan(SIZE, MAKING, 2), workers=2)
    assert [ring.claim(0).value, ring.claim(1).value] == [0, 1]
    ring.open(0)
    assert [ring.claim(1).value, ring.claim(1).value] == [0, 2]


def test_a_batch_is_not_lost_with_a_worker_that_was_about_to_claim_it() -> None:
    env = simpy.Environment()
    ring = Ring(env, Plan(SIZE, MAKING, 0), workers=0)
    worker = Far(Plan(SIZE, MAKING, 1), ring, 0, lambda: MAKING, (Line(env), Line(env), Line(env)))
    env.run(1.0)  # its stand-in sleeps on the ring
    ring.made.append(env.event())
    ring.open(0)
    while not worker._asked.triggered:
        env.step()  # until the claim has succeeded, and the stand-in has not run yet
    worker.die(noticed=0.0)
    env.run(2.0)
    assert ring.claim(0).value == 0


def test_the_ring_opens_no_more_than_it_has_room_for() -> None:
    # the loop takes nothing for a day, so the workers fill the ring and stop
    for plan, room in (
        (Plan(SIZE, MAKING, 3, steals=False), 6),
        (Plan(SIZE, MAKING, 3, steals=True), 24),
        (Plan(SIZE, MAKING, 3, steals=True, deepens=False), 6),
        (Plan(32 * 2**20, MAKING, 3, steals=True), 8),
    ):
        assert plan.under_way(3) == room
        (ring,) = simulate(plan._replace(loop=DAY, warm_up=1e-9, seconds=100.0))
        assert ring.taken == 1 and sum(made.triggered for made in ring.made) == len(ring.made) == room + 1


# -------------------------------------------------------------------------------------------------- what limits a rate


@pytest.mark.parametrize("steals", [True, False])
def test_so_many_workers_give_so_many_times_the_rate_until_the_network_is_full(steals: bool) -> None:
    rates = {far: rate(far, steals=steals, bandwidth=41e6, prefetch_factor=4) for far in (1, 2, 4, 8)}
    assert [rates[far] for far in (1, 2, 4)] == pytest.approx([10, 20, 40], rel=0.02)
    assert rates[8] == pytest.approx(41, rel=0.02)


def test_the_rate_of_a_full_network_is_its_bandwidth_over_the_bytes_of_a_batch() -> None:
    for batch_bytes, bandwidth in ((1e6, 10e6), (1e6, 25e6), (4e6, 25e6)):
        found = rate(6, batch_bytes=batch_bytes, bandwidth=bandwidth, far_bandwidth=math.inf)
        assert found == pytest.approx(bandwidth / batch_bytes, rel=0.02)


def test_far_workers_of_a_node_share_its_network() -> None:
    shared, apart = (rate(4, far_bandwidth=20e6, far_per_node=each) for each in (4, 1))
    assert [shared, apart] == pytest.approx([20, 40], rel=0.02)


def test_each_trainer_has_its_network() -> None:
    assert run(8, trainers=2, bandwidth=30e6) == pytest.approx([30, 30], rel=0.03)


def test_stand_ins_share_the_cores_of_their_node() -> None:
    receiving = 0.05 / SIZE  # seconds a byte: a core receives 20 batches a second
    assert [rate(8, cores=cores, receiving=receiving) for cores in (1, 2, 8)] == pytest.approx([20, 40, 80], rel=0.02)


def test_a_loop_that_asks_seldom_is_the_bottleneck() -> None:
    assert rate(8, loop=0.05) == pytest.approx(20, rel=0.02)


def test_one_request_at_a_time_waits_for_the_network_and_several_do_not() -> None:
    one, two = (rate(4, latency=0.05, in_flight=each) for each in (1, 2))
    assert one == pytest.approx(4 / (MAKING + 2 * 0.05), rel=0.02)
    assert two == pytest.approx(4 / MAKING, rel=0.02)
    # two batches in each time that a request and its answer travel, and no more
    assert rate(4, latency=0.2) == pytest.approx(4 * 2 / (MAKING + 2 * 0.2), rel=0.02)


def test_a_batch_is_there_with_its_last_byte() -> None:
    for networks in ({"bandwidth": 10e6, "far_bandwidth": math.inf}, {"far_bandwidth": 10e6}, {"bandwidth": 10e6}):
        assert rate(1, in_flight=1, **networks) == pytest.approx(1 / (MAKING + 0.1), rel=0.02)


def test_a_far_worker_makes_one_batch_while_another_one_is_sent_and_no_more() -> None:
    env, began = simpy.Environment(), []
    plan = Plan(SIZE, MAKING, 1, in_flight=8, bandwidth=1.0, far_bandwidth=1.0)
    Far(plan, Ring(env, plan, 1), 0, lambda: began.append(env.now) or MAKING, (Line(env), Line(env), Line(env)))  # type: ignore[func-returns-value]
    env.run(20.0)
    assert began == [0.0, MAKING]


def test_in_turns_a_request_for_which_nothing_was_open_waits_for_the_next_batch() -> None:
    # With two batches open for each worker, the second request finds none open until the loop has taken a batch.
    narrow = {"latency": 0.05, "steals": False}
    assert rate(4, **narrow) < 0.7 * 4 / MAKING
    assert rate(4, **narrow, prefetch_factor=4) == pytest.approx(4 / MAKING, rel=0.03)


def test_requests_that_a_shallow_ring_cannot_serve_leave_workers_idle() -> None:
    shallow = {"deepens": False, "jitter": 0.05, "seconds": 8.0}
    few, many = (rate(8, in_flight=each, **shallow) for each in (2, 8))
    assert many < 0.8 * few
    assert rate(8, in_flight=8, prefetch_factor=8, **shallow) > 0.95 * 80


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_in_turns_all_wait_for_a_slow_worker_and_with_stealing_none_does() -> None:
    slow = frozenset({0})  # three times as slow
    assert rate(4, steals=False, slow=slow) == pytest.approx(4 * 10 / 3, rel=0.05)
    assert rate(4, steals=True, slow=slow) == pytest.approx(3 * 10 + 10 / 3, rel=0.05)


@pytest.mark.parametrize("steals", [True, False])
def test_batches_of_a_worker_that_vanishes_are_made_again(steals: bool) -> None:
    assert rate(2, steals=steals, deaths=(Death(5.03, 0, away=DAY if steals else 1.0),)) > 150 / 20


def test_in_turns_the_loop_stands_while_a_worker_is_away_and_with_stealing_others_make_its_share() -> None:
    death = (Death(5.0, 0, away=10.0),)
    stealing, in_turns = (rate(4, steals=steals, deaths=death) for steals in (True, False))
    assert stealing == pytest.approx((40 * 20 - 10 * 10) / 20, rel=0.05)
    assert in_turns == pytest.approx(40 * 10 / 20, rel=0.1)


def test_the_loop_stands_until_a_silent_death_is_noticed() -> None:
    plan = {"deepens": False, "seconds": 30.0}
    at_once, late = (rate(4, deaths=(Death(5.0, 0, 1.0, noticed),), **plan) for noticed in (0.0, 10.0))
    assert late == pytest.approx(at_once - 40 * 9.5 / 30, rel=0.05)


def test_slow_ones_and_deaths_are_as_frequent_as_they_should_be() -> None:
    assert len(scale.fleet("uint8", 100, "slow", "steal").slow) == 50
    plan = scale.fleet("float32", 10, "vanish", "steal")
    end = plan.warm_up + plan.seconds
    assert len(plan.deaths) == pytest.approx(63 * (end + 30) / 330, rel=0.5)
    for node in range(63):
        times = [death for death in plan.deaths if death.node == node]
        assert all(one.at + one.away < other.at for one, other in itertools.pairwise(times))


# -------------------------------------------------------------------------------------------------------- the command


def test_it_simulates_prints_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {
        "far": {f"{far}": {"uint8, 10 Gb/s": Plan(SIZE, MAKING, far)} for far in (1, 2)},
        "cluster": {"6 far": {"0": scale.measured("6 far", [])}},
    }
    monkeypatch.setattr(scale, "plans", lambda: few)
    monkeypatch.setattr(Turn, "measure", lambda turn: scale.row(**turn.arguments))
    assert main(["scale", "--into", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "scale.json").read_text())["summary"]
    assert [its["uint8, 10 Gb/s"] for its in found["far"].values()] == pytest.approx([10, 20], rel=0.02)
    printed = capsys.readouterr().out
    assert "| 2 | 20.2 |" in printed and "| 6 far | 58.3 | 60.0 |" in printed


def test_each_row_is_simulated_once() -> None:
    asked = commands.QUESTIONS["scale"](commands.parser().parse_args(["scale"]))
    rows = [tuple(turn.labels.values()) for turn in asked.turns(0)]
    assert len(set(rows)) == len(rows) == sum(map(len, scale.plans().values()))
