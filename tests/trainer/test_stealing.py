"""schedule="steal": whoever is free makes the next batch; the batches are the same, whoever makes them."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

import pytest
import torch
from conftest import Augmented, Deadly, assert_same, iterate, label, seed_all
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, Subset

import shmloader
from shmloader.trainer import worker_set
from shmloader.trainer.worker_set import WorkerSet


def epochs(count: int = 2, length: int = 23, dataset: Any = None, **options: Any) -> list[Any]:
    """The batches of some epochs, from a seed."""
    seed_all()
    options = {"batch_size": 5, "shuffle": True, "schedule": "steal", **options}
    with shmloader.DataLoader(dataset or Augmented(length), **options) as loader:
        return [iterate(loader) for _ in range(count)]


@pytest.fixture(scope="module")
def without_workers() -> list[Any]:
    return epochs(num_workers=1)


@pytest.mark.parametrize("chunk_size", [None, 1, 3])
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers(without_workers: list[Any], workers: int, chunk_size: int | None) -> None:
    assert_same(epochs(num_workers=workers, chunk_size=chunk_size), without_workers)


@pytest.mark.parametrize(("start", "chunk_size"), [("spawn", None), ("forkserver", 2)])
def test_any_start_method(without_workers: list[Any], start: str, chunk_size: int | None) -> None:
    assert_same(epochs(num_workers=2, chunk_size=chunk_size, multiprocessing_context=start), without_workers)


@pytest.mark.parametrize("options", [{"batch_size": 1}, {"chunk_size": 1}, {"prefetch_factor": 7}], ids=label)
def test_epochs_of_persistent_workers_differ_and_repeat(options: dict[str, Any]) -> None:
    first = epochs(3, num_workers=2, persistent_workers=True, shuffle=False, **options)
    assert_same(first, epochs(3, num_workers=3, persistent_workers=True, shuffle=False, **options))
    with pytest.raises(AssertionError):
        assert_same(first[0], first[1])


def test_neighbours_are_not_seeded_alike() -> None:
    drawn = [draw for batch in epochs(1, num_workers=2)[0] for draw in batch["r"].tolist()]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": None, "shuffle": False},
        {"batch_size": 5, "drop_last": True},
        {"batch_size": 1, "shuffle": False, "batch_sampler": Ellipsis},
        {"collate_fn": list},
    ],
    ids=label,
)
def test_every_kind_of_batch(options: dict[str, Any]) -> None:
    def run(workers: int) -> list[Any]:
        seed_all()
        chosen = dict(options)
        if "batch_sampler" in chosen:
            chosen["batch_sampler"] = BatchSampler(RandomSampler(range(23)), 4, False)
        return epochs(num_workers=workers, **chosen)

    assert_same(run(3), run(1))


class OneIndex(Augmented):
    """Its index is a list."""

    def __getitem__(self, index: Any) -> Any:
        return type(index), super().__getitem__(index[0])


def test_what_samplers_give_stays_what_it_is() -> None:
    got = epochs(1, dataset=OneIndex(4), batch_size=None, sampler=[[k] for k in range(4)], shuffle=False, num_workers=2)
    assert [kind for kind, _ in got[0]] == [list] * 4
    lists = [[0, 1, 2], [3, 4, 5]]
    alike = [
        epochs(1, batch_sampler=s, batch_size=1, shuffle=False, num_workers=2) for s in (lists, [*map(tuple, lists)])
    ]
    assert_same(alike[0], alike[1])


class Together(Augmented):
    """Makes all samples of a batch in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def test_a_dataset_that_makes_batches_gives_the_same(without_workers: list[Any]) -> None:
    assert_same(epochs(dataset=Together(23), num_workers=2, chunk_size=2), without_workers)


def test_a_subset_of_a_subset_gives_the_same(without_workers: list[Any]) -> None:
    """Each gets the indices of the one around it, all of them before the first sample."""
    dataset = Subset(Subset(Augmented(23), range(23)), range(23))
    for options in ({"num_workers": 2}, {"num_workers": 2, "chunk_size": 2}, {"num_workers": 0, "sample_seeds": True}):
        assert_same(epochs(dataset=dataset, **options), without_workers)
    skipping = {"on_bad_sample": "skip:0.5"}
    assert_same(epochs(dataset=dataset, num_workers=2, **skipping), without_workers)


class WaitsFor(Augmented):
    """Its first sample is not made before the one after the next."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(8)
        self.mark = str(folder / "made")

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            pathlib.Path(self.mark).touch()
        while index == 0 and not os.path.exists(self.mark):
            time.sleep(0.005)
        return super().__getitem__(index)


def test_a_slow_batch_holds_nobody_up(tmp_path: pathlib.Path) -> None:
    """Of two workers in turn, the first would have to make both the one that waits and the one that it waits for."""
    got = epochs(1, dataset=WaitsFor(tmp_path), batch_size=1, shuffle=False, num_workers=2)[0]
    assert [batch["i"].item() for batch in got] == list(range(8))


class Tells(Augmented):
    """Notes that a sample was asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.started = torch.multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.started.set()
        return super().__getitem__(index)


@pytest.mark.forked
@pytest.mark.parametrize("options", [{}, {"chunk_size": 2}, {"chunk_size": 2, "schedule": "round_robin"}], ids=label)
def test_the_first_worker_begins_before_the_last_is_started(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Tells(23)
    start_one = WorkerSet._start_one

    def start_late(worker_set: WorkerSet, index: int, first: int) -> Any:
        assert index == 0 or dataset.started.wait(20)
        return start_one(worker_set, index, first)

    monkeypatch.setattr(WorkerSet, "_start_one", start_late)
    assert len(epochs(1, dataset=dataset, num_workers=2, **options)[0]) == 5


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_killed_workers_change_nothing(
    tmp_path: pathlib.Path, without_workers: list[Any], chunk_size: int | None
) -> None:
    options = {"num_workers": 2, "chunk_size": chunk_size}
    assert_same(
        epochs(dataset=Deadly(Augmented(23), tmp_path, [3, 11, 22]), on_worker_death="respawn", **options),
        without_workers,
    )
    assert not list(tmp_path.iterdir())


class Signed(Deadly):
    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return os.getpid()


@pytest.mark.long
def test_another_one_goes_on_while_a_new_one_starts(tmp_path: pathlib.Path) -> None:
    """Those who live have passed over what the dead one held, and must look behind them once more."""
    loader = shmloader.DataLoader(
        Signed(Augmented(23), tmp_path, [11]),
        num_workers=2,
        schedule="steal",
        on_worker_death="respawn",
        multiprocessing_context="spawn",
    )
    with loader:
        iterator: Any = iter(loader)
        first = {worker.pid for worker in iterator._workers}
        assert {batch.item() for batch in iterator} <= first


def test_the_error_of_a_death_has_the_rows_that_were_held(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(
        Deadly(Augmented(23), tmp_path, [7]), 6, num_workers=2, schedule="steal", chunk_size=2
    )
    held = r"It held (.* and )?rows 0 to 1 of batch 1 of this epoch \(indices \[6, 7\]\)"
    with loader, pytest.raises(RuntimeError, match=held):
        list(loader)


class Hangs(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            time.sleep(60)
        return super().__getitem__(index)


def test_the_timeout_of_a_batch_names_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_set, "PATIENCE", 0.5)  # for the worker that hangs, at the end
    loader = shmloader.DataLoader(Hangs(20), 2, num_workers=2, schedule="steal", timeout=1)
    iterator = iter(loader)
    assert [next(iterator)["i"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"Worker \d .* has held batch 2 of this epoch \(indices \[4, 5\]\)"):
        next(iterator)
    loader.close()


def test_as_many_draws_from_the_trainers_generators_as_torch() -> None:
    def state_after(kind: Any, **options: Any) -> Any:
        seed_all()
        for _ in kind(Augmented(12), 3, shuffle=True, num_workers=2, **options):
            pass
        return torch.get_rng_state()

    ours = state_after(shmloader.DataLoader, schedule="steal", chunk_size=2)
    assert torch.equal(ours, state_after(torch.utils.data.DataLoader))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.mark.parametrize(
    ("dataset", "options", "says"),
    [
        (Stream(), {"schedule": "steal"}, "schedule='steal' needs a map-style dataset, but got Stream"),
        (Stream(), {"chunk_size": 1}, "chunk_size needs a map-style dataset, but got Stream"),
        ([1], {"schedule": "steal", "in_order": False}, "schedule='steal' delivers batches in order"),
    ],
)
def test_what_cannot_be_stolen(dataset: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        shmloader.DataLoader(dataset, num_workers=2, **options)


def test_without_workers_samples_are_seeded_too(without_workers: list[Any]) -> None:
    assert_same(epochs(num_workers=0), without_workers)
    assert_same(epochs(num_workers=0, batch_size=None), epochs(num_workers=2, batch_size=None))
    skipping = {"on_bad_sample": "skip:0.5"}
    assert_same(epochs(num_workers=0, **skipping), without_workers)


class Large(Augmented):
    def __init__(self, size: int) -> None:
        super().__init__(200)
        self.size = size

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.size,), index % 128, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("size", "options", "most", "chunk_size"),
    [
        (100, {}, 16, None),
        (100, {}, 16, 1),
        (100, {"max_ring_bytes": 1 << 24}, 4, 1),
        (100, {"max_ring_bytes": 1 << 24}, 4, None),
        (12 << 20, {}, 10, 1),
        (64 << 20, {}, 4, None),
    ],
)
def test_how_many_batches_are_made_ahead(size: int, options: dict[str, Any], most: int, chunk_size: int | None) -> None:
    """Four times as many as torch, where they are small."""
    least = 2 if chunk_size else 4  # two chunks a batch
    most = least if most == 4 else most
    with shmloader.DataLoader(
        Large(size), 2, num_workers=2, schedule="steal", chunk_size=chunk_size, **options
    ) as loader:
        iterator: Any = iter(loader)
        assert iterator._ring.under_way == least
        for k in range(3):
            assert next(iterator)[:, 0].tolist() == [2 * k, 2 * k + 1]
        assert iterator._ring.under_way == most
