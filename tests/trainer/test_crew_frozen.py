"""A worker of a crew drops the dataset of a loader that has parted, and leaves the trainer's objects alone."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Augmented
from torch.utils.data import Dataset

import shmloader
from shmloader.worker.crew_loop import COLLECT_EVERY


class Cycle:
    def __init__(self) -> None:
        self.me = self


class Ends(Dataset[Any]):
    """A file appears when a worker that has unpickled it drops it, or its part."""

    def __init__(self, path: Path, shape: str) -> None:
        self.path, self.shape = path, shape

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self.part = Cycle()
        if self.shape == "itself":
            self.me = self
        whose: object = self.part if self.shape == "a part" else self
        weakref.finalize(whose, self.path.touch).atexit = False

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def appears(path: Path) -> bool:
    end = time.monotonic() + 10
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def loader(dataset: Any, crew: shmloader.Crew) -> Any:
    return shmloader.DataLoader(dataset, crew=crew, num_workers=1, persistent_workers=True)


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often workers that are forked from now on have looked at frozen objects."""
    calls, unfreeze = tmp_path / "calls", gc.unfreeze
    calls.touch()

    def counted() -> None:
        unfreeze()
        with open(calls, "a") as file:
            file.write("x")

    monkeypatch.setattr(gc, "unfreeze", counted)
    return lambda: len(calls.read_text())


@pytest.mark.parametrize(("shape", "looks"), [("plain", 0), ("itself", 1)])
def test_a_dataset_goes_with_its_loader(shape: str, looks: int, tmp_path: Path, looked: Callable[[], int]) -> None:
    with shmloader.Crew(1, multiprocessing_context="fork") as crew, loader(Augmented(4), crew) as first:
        list(first)
        for k in range(2):
            with loader(Ends(tmp_path / str(k), shape), crew) as other:  # it joins workers that run: it is pickled
                list(other)
            assert appears(tmp_path / str(k))
            list(first)  # the worker has done by then what it does when a loader parts
            assert looked() == looks * (k + 1)


def test_a_part_of_it_goes_after_a_few_loaders(tmp_path: Path, looked: Callable[[], int]) -> None:
    with shmloader.Crew(1, multiprocessing_context="fork") as crew, loader(Augmented(4), crew) as first:
        list(first)
        for k in range(COLLECT_EVERY):
            assert looked() == 0
            with loader(Ends(tmp_path / str(k), "a part"), crew) as other:
                list(other)
            list(first)
        assert all(appears(tmp_path / str(k)) for k in range(COLLECT_EVERY))
        assert looked() == 1


def test_what_was_forked_is_not_looked_at(looked: Callable[[], int]) -> None:
    with shmloader.Crew(1, multiprocessing_context="fork") as crew:
        first, second = loader(Augmented(4), crew), loader(Augmented(4), crew)
        list(first)
        list(second)
        first.close()
        list(second)
        second.close()
    assert looked() == 0
