"""Tensors of spawned workers: more than there may be descriptors, and those that only pickling makes."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from conftest import assert_same, iterate
from scripts import run_script

import shmloader

MANY = 400  # multiprocessing's fork server refuses as many


class Many(torch.utils.data.Dataset):
    """A tensor a sample, and a pipe, which no other process can open by a path."""

    def __init__(self, count: int = MANY) -> None:
        self.tensors = [torch.full((2,), index) for index in range(count)]
        self.here, self.writer = multiprocessing.get_context("forkserver").Pipe(duplex=False)

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            self.writer.send("from a worker")
        return self.tensors[index]

    def close(self) -> None:
        self.here.close()
        self.writer.close()


def first(batches: Any) -> list[int]:
    return [int(batch[0]) for batch in batches]


def test_each_tensor_is_shared_with_workers_of_the_fork_server() -> None:
    dataset = Many()
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "forkserver"}
    with shmloader.DataLoader(dataset, persistent_workers=True, **options) as loader:
        assert first(loader) == list(range(MANY))
        assert dataset.here.recv() == "from a worker"
        for tensor in dataset.tensors:
            tensor += 1
        assert first(loader) == list(range(1, MANY + 1)), "the trainer's memory is the workers'"
        assert dataset.here.recv() == "from a worker"
    dataset.close()


def test_a_worker_that_takes_anothers_place_opens_them_too() -> None:
    dataset = Many()
    options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": "forkserver"}
    with shmloader.DataLoader(dataset, on_worker_death="respawn", **options) as loader:
        iterator = iter(loader)
        got = first([next(iterator)])
        iterator._workers[0].kill()
        got += first(iterator)
    assert got == list(range(MANY))
    dataset.close()


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_more_tensors_than_files_that_may_be_open(start: str) -> None:
    ran = run_script(
        """
        import resource, sys
        import torch, shmloader

        class Many(torch.utils.data.Dataset):
            def __init__(self): self.tensors = [torch.ones(1) for _ in range(400)]
            def __len__(self): return len(self.tensors)
            def __getitem__(self, index): return self.tensors[index]

        if __name__ == "__main__":
            resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
            try: iter(shmloader.DataLoader(Many(), num_workers=2, multiprocessing_context="START"))
            except RuntimeError as error: print(error)
        """.replace("START", start)
    )
    assert ran.out.startswith("the dataset has more tensors than this process may open files: "), ran.out + ran.err
    assert "The limit is 300 (ulimit -n)" in ran.out and "multiprocessing_context='fork'" in ran.out


# ------------------------------------------------------------------------------------- tensors that only pickling makes


SAMPLES = 6


class Makes(torch.utils.data.Dataset):
    """Gives a random number, and the last element of a tensor that pickling has made."""

    def __init__(self, tensors: int = 3) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.tensors = tensors
        self.made: list[torch.Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "made": [torch.full((100,), index) for index in range(self.tensors)]}

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        place = index % self.tensors
        made = place if self.made is None else int(self.made[place][-1])  # None: forked
        return torch.rand((), generator=self.generator), made


def test_workers_of_the_fork_server_have_it() -> None:
    """torch's forked workers alone can be compared with: its spawned ones die."""
    theirs = iterate(torch.utils.data.DataLoader(Makes(), num_workers=2, multiprocessing_context="fork"))
    assert_same(iterate(shmloader.DataLoader(Makes(), num_workers=2, multiprocessing_context="forkserver")), theirs)


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_worker_that_takes_anothers_place_has_it(start: str) -> None:
    loader = shmloader.DataLoader(Makes(), num_workers=2, multiprocessing_context=start, on_worker_death="respawn")
    with loader:
        iterator: Any = iter(loader)
        got = [next(iterator)]
        iterator._workers[0].kill()
        got += iterator
    assert [int(made) for _, made in got] == [index % 3 for index in range(SAMPLES)]


@pytest.mark.long
@pytest.mark.parametrize("on_death", ["raise", "respawn"])
def test_workers_that_open_it_by_its_path_find_it(on_death: str) -> None:
    """The fork server gives a worker some 250 descriptors."""
    options: Any = {"num_workers": 2, "multiprocessing_context": "forkserver", "on_worker_death": on_death}
    got = iterate(shmloader.DataLoader(Makes(tensors=300), **options))
    assert [int(made) for _, made in got] == list(range(SAMPLES))
