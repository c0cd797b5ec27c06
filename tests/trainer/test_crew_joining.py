"""What becomes of a crew's other loaders where a worker fails, or dies, while it joins one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import shmloader
from shmloader import Crew
from shmloader.system.handed_over import Channel


class Gated(Dataset[int]):
    """Two of its samples are not there before a file is."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        while index in (4, 5) and not self.gate.exists():
            threading.Event().wait(0.01)
        return index


def die(worker: int) -> None:
    if worker == 1:
        os._exit(3)


def test_a_death_while_a_worker_joins_is_no_fault_of_another_loader(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Crew(2, multiprocessing_context="fork") as crew:
        fine = shmloader.DataLoader(Gated(gate), batch_size=2, crew=crew, on_worker_death="respawn")
        got: list[Any] = []
        iterators: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(fine))
        thread.start()
        try:
            while len(got) < 2:
                threading.Event().wait(0.01)
            for _ in range(2):
                deadly = shmloader.DataLoader(
                    torch.arange(8), batch_size=2, crew=crew, on_worker_death="respawn", worker_init_fn=die
                )
                iterators.append(iter(deadly))
                with pytest.raises(RuntimeError, match="It is the 3rd worker to die while making"):
                    next(iterators[-1])  # while worker 0 waits at the gate, worker 1 dies again and again
        finally:
            gate.touch()
            thread.join()
    assert [batch.tolist() for batch in got] == [[0, 1], [2, 3], [4, 5], [6, 7]]


class Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise OSError("it cannot be unpickled")


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_cannot_be_unpickled_is_the_error_of_each_batch_and_epoch(persistent: bool) -> None:
    with Crew(1, multiprocessing_context="fork") as crew:
        next(iter(shmloader.DataLoader(torch.arange(2), crew=crew)))
        broken: Any = shmloader.DataLoader([0, 1, Unloadable()], crew=crew, persistent_workers=persistent)
        for _ in range(2):
            iterator = iter(broken)
            for _ in range(3):
                with pytest.raises(OSError, match="it cannot be unpickled"):
                    next(iterator)
            assert next(iterator, None) is None


def test_an_iterator_that_ends_while_a_worker_is_replaced_sends_the_new_one_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Crew(1, multiprocessing_context="fork") as crew:
        ends, goes_on = (shmloader.DataLoader(torch.arange(40), batch_size=1, crew=crew) for _ in range(2))
        iterator: Any = iter(ends)
        next(iterator)
        shared = crew._workers
        shared._stop_watch()  # so that nobody has seen the death
        shared.workers[0].kill()
        shared.workers[0].join()
        close = Channel.close

        def closed_by_the_collector(self: Channel) -> None:
            iterator.close()
            close(self)

        monkeypatch.setattr(Channel, "close", closed_by_the_collector)
        assert len(list(goes_on)) == 40
        assert len(list(goes_on)) == 40
