"""Tensors of spawned workers that only pickling makes."""

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
