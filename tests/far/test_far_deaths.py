"""Far workers and stand-ins that die, hang, are slow or never come."""

from __future__ import annotations

import copy
import os
import pathlib
import random
import signal
import time
from typing import Any

import psutil
import pytest
from compared import DRAWN, batches
from conftest import HANGS, assert_same, seed_all
from drawn import Drawn
from engine import Here

import shmloader
from shmloader.trainer.far_worker_set import FarWorkerSet
from shmloader.trainer.watch import runs


def until_an_error(loader: Any) -> RuntimeError:
    """The first error of an epoch.  A loader with a dead worker raises it again and again."""
    with pytest.raises(RuntimeError) as error:
        list(loader)
    return error.value


class Deadly(Drawn):
    """Far workers end when they make a certain sample, as long as a file is there."""

    def __init__(self, token: pathlib.Path, how: str, times: int = 1) -> None:
        super().__init__()
        self.token, self.how = token, how
        for k in range(times):
            (token / str(k)).touch()

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            for each in sorted(self.token.iterdir()):
                try:
                    each.unlink()
                except FileNotFoundError:
                    continue
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif self.how == "hang":
                    time.sleep(HANGS)
                else:
                    os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "options",
    [pytest.param({}, id="round robin", marks=pytest.mark.long), pytest.param({"schedule": "steal"}, id="steal")],
)
def test_a_batch_is_made_again_when_a_far_worker_was_killed(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    options = {"on_worker_death": "respawn", **options}
    got = batches(0, 2, dataset=Deadly(tmp_path, "kill"), **options)
    assert not list(tmp_path.iterdir())
    here = batches(2, 0, **options)
    for each in (*here, *got) if options.get("schedule") else ():
        del each["worker"]
    assert_same(got, here)


def test_a_death_raises_and_names_the_far_worker(tmp_path: pathlib.Path) -> None:
    engine = Here(1, in_flight=1)  # otherwise it may die before the batch before this one is sent
    with shmloader.DataLoader(Deadly(tmp_path, "kill"), batch_size=4, far_workers=engine) as loader:
        text = str(until_an_error(loader))
    assert "exited unexpectedly" in text
    assert "Far worker 0 is lost: it closed the connection. It is process" in text
    assert "It held batch 3 of this epoch (indices [12, 13, 14, 15])" in text


def test_the_third_death_over_one_batch_raises(tmp_path: pathlib.Path) -> None:
    """It may die more often: if it dies before it could say that it has begun the batch, that is not counted."""
    deadly, options = Deadly(tmp_path, "kill", 9), {"on_worker_death": "respawn"}
    engine: Any = Here(1, in_flight=1)
    with shmloader.DataLoader(deadly, batch_size=4, far_workers=engine, **options) as loader:
        text = str(until_an_error(loader))
    assert "3 workers have died while making batch 3 of this epoch" in text and "Far worker 0 is lost" in text


@pytest.mark.long
def test_one_that_hangs_is_replaced_after_the_timeout(tmp_path: pathlib.Path) -> None:
    options = {"on_worker_death": "respawn"}
    got = batches(0, 1, dataset=Deadly(tmp_path, "hang"), timeout=20, **options)
    assert_same(got, batches(1, 0, **options))


def test_one_that_gives_no_sign_of_life_is_lost_without_a_timeout(tmp_path: pathlib.Path) -> None:
    far = Here(1, heartbeat=3.0)
    with shmloader.DataLoader(Deadly(tmp_path, "stop"), batch_size=4, far_workers=far) as loader:
        assert "gave no sign of life for 3 seconds" in str(until_an_error(loader))
        assert far.session is not None
        far.session.closed = True  # it is not to be started again
        far.session.kill(0)


class Slow(Drawn):
    """One sample takes longer than a far worker may be silent."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            time.sleep(4.5)
        return super().__getitem__(index)


@pytest.mark.long
def test_one_that_is_slow_gives_signs_of_life() -> None:
    with shmloader.DataLoader(Slow(6), batch_size=2, far_workers=Here(1, heartbeat=3.0)) as loader:
        assert len(list(loader)) == 3


def test_who_steals_does_not_wait_for_a_far_worker_that_never_comes() -> None:
    class Late(Here):
        def begin(self, tickets: list[Any], arguments: dict[str, Any]) -> Any:
            session = super().begin([], arguments)
            self.tickets = tickets
            return session

    options: dict[str, Any] = {"schedule": "steal", "num_workers": 1, "far_workers": Late(2)}
    with shmloader.DataLoader(DRAWN, batch_size=4, **options) as loader:
        assert len(list(loader)) == 7


@pytest.mark.long
def test_far_workers_and_stand_ins_are_killed_at_random() -> None:
    options: dict[str, Any] = {"schedule": "steal", "on_worker_death": "respawn"}
    expected = batches(2, 0, dataset=Drawn(600), **options)
    far = Here(2)
    chance = random.Random(5)
    seed_all()
    got = []
    with shmloader.DataLoader(Drawn(600), batch_size=4, shuffle=True, far_workers=far, **options) as loader:
        for k, batch in enumerate(iter(loader)):
            got.append(copy.deepcopy(batch))
            if k % 15 == 7:
                assert far.session is not None
                far.session.kill(chance.randrange(2))
        assert far.session is not None and far.session.deaths >= 5
    for each in (*got, *expected):
        del each["worker"]
    assert_same(got, expected)


def test_no_worker_is_forked_from_this_process() -> None:
    """The engine may run threads here."""
    with shmloader.DataLoader(DRAWN, batch_size=4, num_workers=1, far_workers=Here(1)) as loader:
        iterator = iter(loader)
        parents = {psutil.Process(worker.pid).ppid() for worker in iterator._workers}
        assert len(iterator._workers) == 2 and len(parents) == 1 and os.getpid() not in parents


def test_a_stand_in_that_waits_leaves_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:

    class Late(Here):
        """Its far workers never come."""

        def begin(self, tickets: list[Any], arguments: dict[str, Any]) -> Any:
            return super().begin([], arguments)

    left: list[bool] = []
    monkeypatch.setattr(FarWorkerSet, "_terminate", lambda worker_set: left.extend(map(runs, worker_set.workers)))
    with shmloader.DataLoader(DRAWN, batch_size=4, far_workers=Late(1)) as loader:
        iter(loader).close()
    assert left == [False]
