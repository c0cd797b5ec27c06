"""What shmloader.ray says where Ray is not installed, or does not run."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from typing import Any

import pytest

import shmloader
import shmloader.ray
from shmloader.ray import workers


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num": 0}, "num should be a positive integer of actors, but got num=0"),
        ({"num": True}, "num should be a positive integer of actors"),
        ({"in_flight": 0}, "in_flight should be a positive integer of batches, but got in_flight=0"),
        ({"num_cpus": -1}, "num_cpus should be a number of 0 or more, but got num_cpus=-1"),
        ({"start_timeout": "1"}, "start_timeout should be a number of 0 or more"),
        ({"heartbeat": 1}, "heartbeat should be a number of seconds, 3 or more, but got heartbeat=1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as error:
        shmloader.ray.Workers(**{"num": 1, **wrong})
    assert text in str(error.value)


def test_ray_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    loader = shmloader.DataLoader(range(8), far_workers=shmloader.ray.Workers(1))
    with pytest.raises(RuntimeError, match=r"pip install 'shmloader\[ray\]'"):
        iter(loader)


def test_ray_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Resting:
        @staticmethod
        def is_initialized() -> bool:
            return False

    monkeypatch.setattr(workers, "_ray", lambda: Resting)
    loader = shmloader.DataLoader(range(8), far_workers=shmloader.ray.Workers(1))
    with pytest.raises(RuntimeError, match=r"Call ray.init\(\) before the loader is iterated"):
        iter(loader)


def test_the_trainer_must_be_inside_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors could not connect to a client of the cluster."""
    client = types.SimpleNamespace(ray=types.SimpleNamespace(is_connected=lambda: True))
    remote = types.SimpleNamespace(is_initialized=lambda: True, util=types.SimpleNamespace(client=client))
    monkeypatch.setattr(workers, "_ray", lambda: remote)
    loader = shmloader.DataLoader(range(8), far_workers=shmloader.ray.Workers(1))
    with pytest.raises(RuntimeError, match=r"need a trainer inside the cluster, and this process is a client of it"):
        iter(loader)


def test_a_copy_is_the_same_and_another_process_has_its_own() -> None:
    mine = shmloader.ray.Workers(3, heartbeat=5)
    assert copy.copy(mine) is mine and copy.deepcopy(mine) is mine
    sent = pickle.loads(pickle.dumps(mine))
    assert (sent.num, sent.heartbeat) == (3, 5.0) and repr(sent) == "Workers(num=3)"
    sent.close()
