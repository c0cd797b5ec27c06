"""Workers that die or hang: replaced where that is asked for, and named with what they held where it is not."""

from __future__ import annotations

import functools
import os
import pathlib
import random
import re
import signal
import time
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, assert_same, label, seed_all
from torch.utils.data import IterableDataset, default_collate

import shmloader

KILLED = "is killed by signal: Killed."


class Deadly(Augmented):
    """Kills its worker at some indices, as often as there are token files for them."""

    def __init__(self, folder: pathlib.Path, deaths: dict[int, int], length: int = 40, how: Any = None) -> None:
        super().__init__(length)
        self.folder, self.how = str(folder), how
        for index, times in deaths.items():
            for k in range(times):
                (folder / f"{index}_{k}").touch()

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        for k in range(9):
            path = pathlib.Path(self.folder) / f"{index}_{k}"
            if path.exists():
                path.unlink()
                (self.how or die)()
        return item


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def vanish() -> None:
    os._exit(0)


def leave() -> None:
    raise SystemExit(3)


def hang(note: pathlib.Path | None = None) -> None:
    if note is not None:
        note.write_text(str(time.monotonic()))
    time.sleep(60)


def overflow() -> None:
    signal.raise_signal(signal.SIGSEGV)


def epochs(loader: Any, count: int = 2) -> list[Any]:
    seed_all()
    return [list(loader) for _ in range(count)]


def undisturbed(**options: Any) -> list[Any]:
    return epochs(torch.utils.data.DataLoader(Augmented(40), **options))


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_the_values_are_those_of_an_undisturbed_run(tmp_path: pathlib.Path, start: str) -> None:
    options = {"batch_size": 3, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    dataset = Deadly(tmp_path, {3: 1, 4: 2, 39: 1})
    with shmloader.DataLoader(dataset, on_worker_death="respawn", multiprocessing_context=start, **options) as loader:
        assert_same(epochs(loader), undisturbed(**options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [vanish, leave, overflow])
def test_every_way_to_end(tmp_path: pathlib.Path, how: Any) -> None:
    options = {"batch_size": 3, "num_workers": 2}
    loader = shmloader.DataLoader(Deadly(tmp_path, {7: 1, 8: 1}, how=how), on_worker_death="respawn", **options)
    assert_same(epochs(loader), undisturbed(**options))


def remembering(batch: list[Any], kept: list[Any] = []) -> Any:  # noqa: B006
    kept.append(default_collate(batch))
    return kept[-1]


@pytest.mark.parametrize(
    "options",
    [
        {"collate_fn": remembering, "spare_slots": 0},
        {"collate_fn": remembering, "prefetch_factor": 1},
        {"prefetch_factor": 5, "spare_slots": 0},
        {"worker_init_fn": random.seed, "ring_memory": "memfd"},
    ],
    ids=label,
)
def test_with_other_options(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    ours = {"batch_size": 2, "num_workers": 2, "persistent_workers": True, **options}
    theirs = {key: value for key, value in ours.items() if key not in ("spare_slots", "ring_memory")}
    deaths = dict.fromkeys(range(1, 40, 4), 1)  # more deaths than the ring has payloads in reserve
    with shmloader.DataLoader(Deadly(tmp_path, deaths), on_worker_death="respawn", **ours) as loader:
        assert_same(epochs(loader), undisturbed(**theirs))


def test_workers_that_wait_are_replaced_too() -> None:
    options = {"batch_size": 4, "num_workers": 2, "persistent_workers": True}
    with shmloader.DataLoader(Augmented(40), on_worker_death="respawn", **options) as loader:
        seed_all()
        got = []
        for _ in range(3):
            got.append(list(loader))
            for worker in loader._iterator._workers:
                worker.kill()
                worker.join()
        seed_all()
        theirs = torch.utils.data.DataLoader(Augmented(40), **options)
        assert_same(got, [list(theirs) for _ in range(3)])


def test_the_third_death_over_one_batch(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(
        Deadly(tmp_path, {8: 2, 21: 3}), batch_size=4, num_workers=2, on_worker_death="respawn"
    )
    iterator, got = iter(loader), []
    with pytest.raises(RuntimeError) as caught:
        for batch in iterator:
            got += batch["i"].tolist()
    assert got == list(range(len(got))) and len(got) <= 20  # it is raised when it is seen, as every death is
    text = str(caught.value)
    assert KILLED in text and "3rd to die over batch 5 of this epoch (indices [20, 21, 22, 23])" in text
    with pytest.raises(RuntimeError, match="3rd to die"):
        next(iterator)
    iterator.close()
    assert len(list(loader)) == 10  # no token is left


def test_workers_that_die_before_they_are_given_anything() -> None:
    def poisoned(worker_id: int) -> None:
        if worker_id == 1:
            die()

    loader = shmloader.DataLoader(
        Augmented(40), batch_size=4, num_workers=2, worker_init_fn=poisoned, on_worker_death="respawn"
    )
    with pytest.raises(RuntimeError, match="3rd to die over batch 1 of this epoch"):
        list(loader)
    loader.close()


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        yield from range(3)
        die()


def test_a_stream_cannot_go_on() -> None:
    loader = shmloader.DataLoader(Stream(), batch_size=2, num_workers=1, on_worker_death="respawn")
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    text = str(caught.value)
    assert KILLED in text and "It held batch 1 of this epoch" in text and "IterableDataset" in text
    loader.close()


@pytest.mark.parametrize("dead", [0, 1])
def test_raising_says_what_was_held(tmp_path: pathlib.Path, dead: int) -> None:
    index = 8 + 4 * dead  # batch 2 or 3
    loader = shmloader.DataLoader(Deadly(tmp_path, {index: 1}), batch_size=4, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    with pytest.raises(RuntimeError) as caught:
        list(iterator)
    held = f"It held batch {2 + dead} of this epoch (indices [{index}, {index + 1}, {index + 2}, {index + 3}])."
    first, second, third = str(caught.value).splitlines()
    assert first.endswith("exited unexpectedly") and second.endswith(KILLED) and third == held
    loader.close()


# ------------------------------------------------------------------------------------------------------------ hanging


def test_a_timeout_says_who_holds_what_and_where(tmp_path: pathlib.Path) -> None:
    dataset = Deadly(tmp_path, {9: 1}, how=functools.partial(hang, tmp_path / "hung"))
    made = time.monotonic()
    iterator = iter(shmloader.DataLoader(dataset, batch_size=4, num_workers=2, timeout=3))
    for _ in range(2):
        next(iterator)
    pid = iterator._workers[0].pid
    waited = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        next(iterator)
    told = time.monotonic()
    lines = str(caught.value).splitlines()
    assert lines[0] == "DataLoader timed out after 3 seconds"
    held = re.fullmatch(
        rf"Worker 0 \(pid {pid}\) has held batch 2 of this epoch \(indices \[8, 9, 10, 11\]\) for (\d+\.\d) seconds\."
        " It is here:",
        lines[1],
    )
    assert held, lines[1]
    hung = float((tmp_path / "hung").read_text())
    assert waited + 3 - hung - 0.1 <= float(held[1]) <= told - made + 0.1, (made, hung, waited, told)
    assert any("test_respawn.py" in line and line.endswith("in hang") for line in lines)
    assert lines[-1].endswith("in _worker_loop"), "how the worker came to be is of no use"
    iterator.close()


def test_a_worker_that_cannot_answer(tmp_path: pathlib.Path) -> None:
    iterator = iter(shmloader.DataLoader(Augmented(40), num_workers=1, timeout=3))
    next(iterator)
    pid = iterator._workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=r"does not answer; its state is T \(stopped\)"):
        list(iterator)
    os.kill(pid, signal.SIGCONT)
    iterator.close()


def test_hung_workers_are_replaced(tmp_path: pathlib.Path) -> None:
    options = {"batch_size": 4, "num_workers": 2}
    dataset = Deadly(tmp_path, {9: 1, 30: 2}, how=hang)
    loader = shmloader.DataLoader(dataset, timeout=2, on_worker_death="respawn", **options)
    seed_all()
    got = list(loader)
    seed_all()
    assert_same(got, list(torch.utils.data.DataLoader(Augmented(40), **options)))


def test_the_third_time_a_batch_hangs(tmp_path: pathlib.Path) -> None:
    dataset = Deadly(tmp_path, {9: 3}, how=hang)
    loader = shmloader.DataLoader(dataset, batch_size=4, num_workers=2, timeout=2, on_worker_death="respawn")
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    text = str(caught.value)
    assert text.startswith("DataLoader timed out after 2 seconds\n") and "in hang" in text
    assert "3rd to die over batch 2 of this epoch (indices [8, 9, 10, 11])" in text
    loader.close()


def test_bad_values() -> None:
    with pytest.raises(ValueError, match="on_worker_death should be 'raise' or 'respawn', but got on_worker_death='x'"):
        shmloader.DataLoader(Augmented(), on_worker_death="x")


def test_what_a_worker_leaves() -> None:
    from shmloader import generators

    seed_all()
    numpy.random.randn(1)  # leaves half a pair of Gaussians behind
    left = generators.states()
    drawn = [random.random(), numpy.random.randn(3).tolist(), torch.rand(3).tolist(), random.gauss(0, 1)]
    seed_all(8)
    generators.restore(left)
    assert [random.random(), numpy.random.randn(3).tolist(), torch.rand(3).tolist(), random.gauss(0, 1)] == drawn
