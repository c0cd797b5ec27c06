"""The simulation of large clusters: nothing is lost in it, and each thing in it limits as it should."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("rich")
pytest.importorskip("simpy")


from bench import scale
from bench.__main__ import main
from bench.core.question import Turn
from bench.scale import Death, Plan, simulate

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


def test_one_request_at_a_time_waits_for_the_network_and_several_do_not() -> None:
    one, two = (rate(4, latency=0.05, in_flight=each) for each in (1, 2))
    assert one == pytest.approx(4 / (MAKING + 2 * 0.05), rel=0.02)
    assert two == pytest.approx(4 / MAKING, rel=0.02)
    # two batches in each time that a request and its answer travel, and no more
    assert rate(4, latency=0.2) == pytest.approx(4 * 2 / (MAKING + 2 * 0.2), rel=0.02)


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_in_turns_all_wait_for_a_slow_worker_and_with_stealing_none_does() -> None:
    slow = frozenset({0})  # three times as slow
    assert rate(4, steals=False, slow=slow) == pytest.approx(4 * 10 / 3, rel=0.05)
    assert rate(4, steals=True, slow=slow) == pytest.approx(3 * 10 + 10 / 3, rel=0.05)


def test_the_loop_stands_until_a_silent_death_is_noticed() -> None:
    plan = {"deepens": False, "seconds": 30.0}
    at_once, late = (rate(4, deaths=(Death(5.0, 0, 1.0, noticed),), **plan) for noticed in (0.0, 10.0))
    assert late == pytest.approx(at_once - 40 * 9.5 / 30, rel=0.05)


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
