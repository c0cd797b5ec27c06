"""Far workers on a Ray cluster of three nodes, which all are this machine.  `make test-ray`."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray
from conftest import assert_same, seed_all
from drawn import Drawn
from ray_nodes import PATH, actors, cluster_of, until
from torch.utils.data import Dataset

import shmloader
import shmloader.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of({}, {}) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Ray has processes, threads and descriptors of its own, so in here a test looks for actors that are left."""
    yield
    if ray.is_initialized():
        assert until(lambda: not actors()), f"{actors()} are left"


def batches(local: int, far: Any = None, *, dataset: Any = None, epochs: int = 1, **options: Any) -> list[Any]:
    seed_all()
    if far is None:
        options.update(multiprocessing_context="forkserver")
    options = {"batch_size": 4, "shuffle": True, "num_workers": local, "far_workers": far, **options}
    got = []
    with shmloader.DataLoader(Drawn() if dataset is None else dataset, **options) as loader:
        for _ in range(epochs):
            got += [copy.deepcopy(batch) for batch in loader]
    return got


def without_worker(found: list[Any]) -> list[Any]:
    return [{key: value for key, value in each.items() if key != "worker"} for each in found]


@pytest.mark.parametrize("another", [False, True])
def test_only_actors_of_this_session_count(another: bool) -> None:
    """Otherwise another run of these tests, or a bench, on this machine would fail them."""
    with subprocess.Popen(["ray::FarWorker.work", "60"], executable="sleep", start_new_session=another) as other:
        assert (other.pid in actors()) is not another
        other.kill()


# --------------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize(("local", "far"), [(2, 4), (5, 1), (0, 6)])
def test_batches_are_those_of_six_local_workers(cluster: Any, local: int, far: int) -> None:
    with shmloader.ray.Workers(far, num_cpus=0.5) as workers:
        assert_same(batches(local, workers), batches(6))
        got = batches(local, workers, schedule="steal")
    assert_same(without_worker(got), without_worker(batches(6, schedule="steal")))


def test_epochs_share_the_actors(cluster: Any) -> None:
    with shmloader.ray.Workers(2) as workers:
        got = batches(1, workers)
        first = actors()
        again = batches(1, workers)
        assert sorted(actors()) == sorted(first)
        assert_same(again, got)
        assert_same(
            batches(1, workers, epochs=3, persistent_workers=True), batches(3, epochs=3, persistent_workers=True)
        )
        assert sorted(actors()) == sorted(first)


def test_two_iterators_at_once_have_actors_of_their_own(cluster: Any) -> None:
    with shmloader.ray.Workers(1) as workers:
        make: dict[str, Any] = {"batch_size": 4, "far_workers": workers}
        with shmloader.DataLoader(Drawn(), **make) as one, shmloader.DataLoader(Drawn(), **make) as other:
            pairs = [(left["name"], right["name"]) for left, right in zip(one, other, strict=True)]
    assert len(pairs) == 7 and all(left == right for left, right in pairs)


def test_the_dataset_is_put_into_the_object_store_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[int] = []
    original = ray.put
    monkeypatch.setattr(ray, "put", lambda value: (put.append(len(value)), original(value))[1])
    dataset = Drawn()
    with shmloader.ray.Workers(2) as workers:
        with shmloader.DataLoader(dataset, batch_size=4, far_workers=workers) as loader:
            for _ in range(2):
                list(loader)
            assert len(put) == 1
            dataset.length = 8
            assert len(list(loader)) == 2
        assert len(put) == 2


def test_a_dataset_that_cannot_be_pickled_is_named(cluster: Any) -> None:
    dataset = Drawn()
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    text = "far_workers are sent Drawn, its collate_fn and its worker_init_fn, and one of them cannot be pickled"
    with shmloader.ray.Workers(1) as workers, pytest.raises(TypeError, match=text):
        iter(shmloader.DataLoader(dataset, batch_size=4, far_workers=workers))


# ----------------------------------------------------------------------------------------------------------- deaths


class Long(Drawn):
    """Samples that take a moment, so that actors die in the middle of one."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.005)
        return super().__getitem__(index)


def test_a_death_raises_and_names_the_actor(cluster: Any) -> None:
    with (
        shmloader.ray.Workers(1) as workers,
        shmloader.DataLoader(Long(400), batch_size=4, far_workers=workers) as loader,
    ):
        iterator = iter(loader)
        next(iterator)
        os.kill(actors()[0], signal.SIGKILL)
        with pytest.raises(RuntimeError) as error:
            list(iterator)
    assert "Far worker 0 is lost" in str(error.value) and "It is the Ray actor" in str(error.value)


# ---------------------------------------------------------------------------------------------- starting and ending


def test_a_cluster_with_fewer_cpus_starts_with_what_there_is(cluster: Any) -> None:
    expected = batches(1, schedule="steal")
    text = "0 of 3 far workers have started within 1 seconds. The cluster has 6"
    with (
        shmloader.ray.Workers(3, resources={"nobody_has_it": 1}, start_timeout=1) as workers,
        pytest.warns(RuntimeWarning, match=text),
    ):
        got = batches(1, workers, schedule="steal")
    assert_same(without_worker(got), without_worker(expected))


def test_other_libraries_are_said_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = shmloader.ray.workers.facts()
    monkeypatch.setattr("shmloader.ray.workers.facts", lambda: {**here, "torch": "1.0"})
    with shmloader.ray.Workers(2) as workers, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches(0, workers)
        batches(0, workers)
    texts = [str(each.message) for each in caught if "other libraries" in str(each.message)]
    assert len(texts) == 1 and f"torch 1.0 here and {here['torch']} there" in texts[0]


SCRIPT = """
import os, sys, time
import ray, torch
import shmloader, shmloader.ray
from drawn import Drawn

if __name__ == "__main__":
    ray.init(address=sys.argv[1], runtime_env={"env_vars": {"PYTHONPATH": sys.argv[2]}}, log_to_driver=False)
    far = shmloader.ray.Workers(2)
    loader = shmloader.DataLoader(Drawn(100_000), batch_size=4, num_workers=1, far_workers=far)
    for k, batch in enumerate(loader):
        if k == 9:
            print("going", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_nothing_is_left_of_a_trainer_that_was_killed(cluster: Any, number: signal.Signals, tmp_path: Any) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT)
    trainer = subprocess.Popen(
        [sys.executable, script, cluster.address, PATH],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": PATH},
    )  # fmt: skip
    with trainer:
        assert trainer.stdout is not None and trainer.stdout.readline() == b"going\n"
        born = psutil.Process(trainer.pid).children(recursive=True)
        assert len(actors()) == 2 and len(born) >= 4  # the fork server, a worker and two stand-ins
        trainer.send_signal(number)
        trainer.wait(60)
    assert until(lambda: not any(each.is_running() and each.status() != "zombie" for each in born))
    assert until(lambda: not actors())


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def test_an_actor_that_computes_for_nobody_ends_when_the_loader_is_closed(cluster: Any) -> None:
    class Stuck(Numbers):
        def __getitem__(self, index: int) -> int:
            time.sleep(1000 if index >= 4 else 0)
            return index

    with shmloader.ray.Workers(1) as workers:
        with shmloader.DataLoader(Stuck(), batch_size=4, far_workers=workers) as loader:
            assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        with shmloader.DataLoader(Numbers(), batch_size=4, far_workers=workers) as loader:
            assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
