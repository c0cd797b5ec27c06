"""Workers have the tensors that only pickling makes: the state of a Generator, or what `__getstate__` returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import assert_same, iterate

import shmloader

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


def expected() -> Any:
    """torch's spawned workers die."""
    return iterate(torch.utils.data.DataLoader(Makes(), num_workers=2, multiprocessing_context="fork"))


def test_workers_of_the_fork_server_have_it() -> None:
    ours = iterate(shmloader.DataLoader(Makes(), num_workers=2, multiprocessing_context="forkserver"))
    assert_same(ours, expected())


@pytest.mark.long
def test_workers_that_are_spawned_have_it() -> None:
    assert_same(iterate(shmloader.DataLoader(Makes(), num_workers=2, multiprocessing_context="spawn")), expected())


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
