"""shmloader.ray.prepare_data_loader in training functions of Ray Train."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import ray.train
import ray.train.torch
import scripts
import torch
from ray.train.torch import TorchTrainer
from torch.utils.data import Dataset

import shmloader
import shmloader.ray

TESTS = scripts.ROOT / "tests"
PATH = os.pathsep.join(map(str, [scripts.ROOT, TESTS, TESTS / "far", TESTS / "far" / "with_ray"]))


@pytest.fixture(scope="module")
def one_node() -> Iterator[None]:
    env = {"PYTHONPATH": PATH, "GLOO_SOCKET_IFNAME": "lo"}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": env}, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Ray has processes, threads and descriptors of its own."""


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 72

    def __getitem__(self, index: int) -> int:
        return index


MADE: dict[str, Any] = {
    "batch_size": 2,
    "shuffle": True,
    "num_workers": 1,
    "prefetch_factor": 3,
    "persistent_workers": True,
    "schedule": "steal",
    "on_worker_death": "respawn",
    "multiprocessing_context": "forkserver",
}


def train(config: dict[str, Any]) -> None:
    """Take some batches of an epoch, after a state if there is one, and write down what came."""
    loader: Any = shmloader.ray.prepare_data_loader(shmloader.DataLoader(Numbers(), **MADE))
    kept = {name: getattr(loader, name) for name in ("prefetch_factor", "persistent_workers", "schedule")}
    folder = pathlib.Path(config["folder"])
    state = folder / "state.json"
    loader.set_epoch(5)
    if config["resumes"]:
        loader.load_state_dict(json.loads(state.read_text()))
    got, left = [], None
    for k, batch in enumerate(loader, 1):
        got += batch.tolist()
        if k == config["batches"]:
            left = loader.state_dict()
            break
    rank = ray.train.get_context().get_world_rank()
    if left is not None and rank == 0:
        state.write_text(json.dumps(left))
    found = {"got": got, "kept": kept, "kind": type(loader).__qualname__, "sampler": type(loader.sampler).__module__}
    (folder / f"{config['name']}{rank}.json").write_text(json.dumps({**found, "rides": loader.rides_ring}))
    loader.close()


def fit(folder: pathlib.Path, ranks: int, **config: Any) -> list[Any]:
    config = {"resumes": False, "batches": 1000, "name": "", "folder": str(folder), **config}
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ray.train.ScalingConfig(num_workers=ranks),
        run_config=ray.train.RunConfig(storage_path=str(folder / "storage")),
    )
    trainer.fit()
    return [json.loads((folder / f"{config['name']}{rank}.json").read_text()) for rank in range(ranks)]


def test_two_ranks_leave_in_mid_epoch_and_three_go_on(one_node: None, tmp_path: pathlib.Path) -> None:
    first = fit(tmp_path, 2, batches=6, name="first")
    rest = fit(tmp_path, 3, resumes=True, name="rest")
    for each in (*first, *rest):
        assert each["kind"] == "DataLoader" and each["sampler"] == "shmloader.resume.distributed" and each["rides"]
        assert each["kept"] == {name: MADE[name] for name in each["kept"]}
    got = [index for each in (*first, *rest) for index in each["got"]]
    assert [len(each["got"]) for each in first] == [12, 12] and [len(each["got"]) for each in rest] == [16, 16, 16]
    assert sorted(got) == list(range(72)) and got != sorted(got)


def unpatched(config: dict[str, Any]) -> None:
    import warnings

    loader = shmloader.DataLoader(Numbers(), **MADE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        theirs = ray.train.torch.prepare_data_loader(loader)
        list(theirs)
    texts = [str(each.message) for each in caught if "on_worker_death='respawn'" in str(each.message)]
    rank = ray.train.get_context().get_world_rank()
    (pathlib.Path(config["folder"]) / f"{rank}.json").write_text(json.dumps(texts))


def test_an_unpatched_ray_that_replaces_ours_is_said(one_node: None, tmp_path: pathlib.Path) -> None:
    TorchTrainer(
        unpatched,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path / "storage")),
    ).fit()
    for rank in range(2):
        (said,) = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "Call shmloader.patch_torch() before" in said and "Ray Train" in said


# ------------------------------------------------------------------------------------- without a training function


class Context:
    """Two ranks, of which this is the second."""

    @staticmethod
    def get_world_size() -> int:
        return 2

    @staticmethod
    def get_world_rank() -> int:
        return 1


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.train, "get_context", Context)
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))


def test_every_option_is_kept(second_of_two: None) -> None:
    generator = torch.Generator()
    given: dict[str, Any] = {
        "num_workers": 3, "timeout": 5, "drop_last": True, "generator": generator, "in_order": True,
        "multiprocessing_context": "spawn", "spare_slots": 4, "sample_seeds": True,
        "prefetch_factor": 4, "persistent_workers": True, "worker_init_fn": print,
    }  # fmt: skip
    loader = shmloader.DataLoader(Numbers(), batch_size=8, **given)
    made = shmloader.ray.prepare_data_loader(loader)
    assert made is not loader
    for name, value in given.items():
        found = getattr(made, name)
        assert found.get_start_method() == value if name == "multiprocessing_context" else found == value
    sampler: Any = made.sampler
    assert (sampler.num_replicas, sampler.rank, sampler.shuffle) == (2, 1, False)


def test_a_loader_with_a_share_stays(second_of_two: None) -> None:
    sampler = torch.utils.data.DistributedSampler(Numbers(), 2, 1)
    loader = shmloader.DataLoader(Numbers(), sampler=sampler)
    assert shmloader.ray.prepare_data_loader(loader) is loader
    plain = shmloader.DataLoader(Numbers())
    assert shmloader.ray.prepare_data_loader(plain, add_dist_sampler=False) is plain


def test_what_cannot_be_prepared_is_refused(second_of_two: None) -> None:
    class Derived(shmloader.DataLoader[Any]):
        pass

    with pytest.raises(TypeError, match=r"needs a shmloader\.DataLoader, but got DataLoader"):
        shmloader.ray.prepare_data_loader(torch.utils.data.DataLoader(Numbers()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot build another Derived"):
        shmloader.ray.prepare_data_loader(Derived(Numbers()))
    batches = torch.utils.data.BatchSampler(range(72), 4, False)
    with pytest.raises(ValueError, match="cannot divide the batches of BatchSampler among 2"):
        shmloader.ray.prepare_data_loader(shmloader.DataLoader(Numbers(), batch_sampler=batches))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_example_gives_each_sample_once() -> None:
    environment = {**os.environ, "PYTHONPATH": str(scripts.ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "examples.train_ray"]
    ran = subprocess.run(command, cwd=scripts.ROOT, env=environment, capture_output=True, text=True, timeout=540)
    texts = re.findall(r"^(\d) training workers: (\d+) samples", ran.stdout, re.MULTILINE)
    assert texts == [("2", "288"), ("3", "672")], ran.stderr[-2000:]
