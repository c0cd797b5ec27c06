"""Workers that die or hang: replaced where that is asked for, and named with what they held where it is not."""

from __future__ import annotations

import functools
import os
import pathlib
import random
import re
import signal
import subprocess
import time
from typing import Any

import numpy
import pytest
import torch
from conftest import Augmented, Deadly, assert_same, die, into_environment, label, seed_all
from torch.utils.data import IterableDataset, default_collate

import shmloader
from shmloader.system.call_stacks import StackMemory
from shmloader.trainer import worker_set

KILLED = "is killed by signal: Killed."


def deadly(folder: pathlib.Path, deaths: dict[int, int], how: Any = None) -> Deadly:
    return Deadly(Augmented(40), folder, deaths, how)


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


def test_the_values_are_those_of_an_undisturbed_run(tmp_path: pathlib.Path) -> None:
    options = {"batch_size": 3, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    dataset = deadly(tmp_path, {3: 1, 4: 2, 39: 1})
    with shmloader.DataLoader(dataset, on_worker_death="respawn", **options) as loader:
        assert_same(epochs(loader), undisturbed(**options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", [vanish, leave, overflow])
def test_every_way_to_end(tmp_path: pathlib.Path, how: Any) -> None:
    options = {"batch_size": 3, "num_workers": 2}
    loader = shmloader.DataLoader(deadly(tmp_path, {7: 1, 8: 1}, how=how), on_worker_death="respawn", **options)
    assert_same(epochs(loader), undisturbed(**options))


class ByTensor(Deadly):
    """Indices are tensors, as torch's samplers give them where they were made of a tensor."""

    def __getitem__(self, index: Any) -> int:
        assert type(index) is torch.Tensor and index.dtype is torch.int64 and not index.shape
        super().__getitem__(index.item())
        return index.item()


@pytest.mark.parametrize("options", [{}, {"schedule": "steal"}, {"chunk_size": 2}], ids=label)
def test_indices_that_are_tensors(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    dataset = ByTensor(Augmented(40), tmp_path, {7: 1, 8: 1})
    loader = shmloader.DataLoader(
        dataset, 3, sampler=torch.arange(40), num_workers=2, on_worker_death="respawn", **options
    )
    assert torch.cat(list(loader)).tolist() == list(range(40))
    loader = shmloader.DataLoader(
        ByTensor(Augmented(40), tmp_path, {4: 1}), 3, sampler=torch.arange(40), num_workers=2, **options
    )
    with pytest.raises(RuntimeError, match=r"(?s)Killed.*It held .*batch 1 of this epoch \(indices \[.*tensor\(4\)"):
        list(loader)


def remembering(batch: list[Any], seen: list[Any] = []) -> Any:  # noqa: B006
    seen.append(default_collate(batch))
    return seen[-1]


@pytest.mark.parametrize(
    "options",
    [
        {"collate_fn": remembering, "spare_slots": 0},
        {"collate_fn": remembering, "prefetch_factor": 1},
        {"prefetch_factor": 5, "spare_slots": 0},
        {"worker_init_fn": random.seed, "SHMLOADER_RING_MEMORY": "memfd"},
    ],
    ids=label,
)
def test_with_other_options(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    options = into_environment(monkeypatch, options)
    ours = {"batch_size": 2, "num_workers": 2, "persistent_workers": True, **options}
    theirs = {key: value for key, value in ours.items() if key != "spare_slots"}
    deaths = dict.fromkeys(range(1, 40, 4), 1)  # more deaths than the ring has payloads in reserve
    with shmloader.DataLoader(deadly(tmp_path, deaths), on_worker_death="respawn", **ours) as loader:
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


@pytest.mark.parametrize("schedule", ["round_robin", "steal"])
def test_the_third_death_over_one_batch(tmp_path: pathlib.Path, schedule: str) -> None:
    """Whoever died."""
    loader = shmloader.DataLoader(
        deadly(tmp_path, {8: 2, 21: 3}), batch_size=4, num_workers=2, on_worker_death="respawn", schedule=schedule
    )
    iterator, got = iter(loader), []
    with pytest.raises(RuntimeError) as caught:
        for batch in iterator:
            got += batch["i"].tolist()
    assert got == list(range(len(got))) and len(got) <= 20  # it is raised when it is seen, as every death is
    text = str(caught.value)
    assert (
        KILLED in text and "3 workers have died while making batch 5 of this epoch (indices [20, 21, 22, 23])" in text
    )
    with pytest.raises(RuntimeError, match="3 workers have died"):
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
    with pytest.raises(RuntimeError, match="3 workers have died while making batch 1 of this epoch"):
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
def test_the_error_names_the_batches_that_were_held(tmp_path: pathlib.Path, dead: int) -> None:
    index = 8 + 4 * dead  # batch 2 or 3
    loader = shmloader.DataLoader(deadly(tmp_path, {index: 1}), batch_size=4, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    with pytest.raises(RuntimeError) as caught:
        list(iterator)
    held = f"It held batch {2 + dead} of this epoch (indices [{index}, {index + 1}, {index + 2}, {index + 3}])."
    first, second, third = str(caught.value).splitlines()
    assert first.endswith("exited unexpectedly") and second.endswith(KILLED) and third == held
    loader.close()


# ------------------------------------------------------------------------------------------------------------ hanging


def test_a_timeout_names_the_worker_its_batch_and_its_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_set, "PATIENCE", 0.5)  # for the worker that hangs, at the end
    dataset = deadly(tmp_path, {9: 1}, how=functools.partial(hang, tmp_path / "hung"))
    made = time.monotonic()
    iterator = iter(shmloader.DataLoader(dataset, batch_size=4, num_workers=2, timeout=3))
    for _ in range(2):
        next(iterator)
    pid = iterator._workers[0].pid
    waited = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        next(iterator)
    raised = time.monotonic()
    lines = str(caught.value).splitlines()
    assert lines[0] == "DataLoader timed out after 3 seconds"
    held = re.fullmatch(
        rf"Worker 0 \(pid {pid}\) has held batch 2 of this epoch \(indices \[8, 9, 10, 11\]\) for (\d+\.\d) seconds\."
        " It is here:",
        lines[1],
    )
    assert held, lines[1]
    hung = float((tmp_path / "hung").read_text())
    assert waited + 3 - hung - 0.1 <= float(held[1]) <= raised - made + 0.1, (made, hung, waited, raised)
    assert any("test_respawn.py" in line and line.endswith("in hang") for line in lines)
    assert lines[-1].endswith("in _fill"), "how the worker came to be is of no use"
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


class Starting(Augmented):
    """Takes seconds to unpickle, so its worker has begun nothing and cannot report anything."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(3)
        self.__dict__.update(state)


def test_a_timeout_while_workers_are_being_started() -> None:
    """The signal that asks for a worker's stack would kill one that does not expect it yet."""
    loader = shmloader.DataLoader(Starting(), num_workers=1, timeout=0.5, multiprocessing_context="forkserver")
    iterator = iter(loader)
    texts = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        texts.append(str(caught.value))
    pid = iterator._workers[0].pid
    for text in texts:
        assert text.startswith("DataLoader timed out after 0.5 seconds\n"), text
        assert f"Worker 0 (pid {pid}) has not begun batch 0 of this epoch (indices [0]). It is here:\n" in text
        assert re.search(r"still being started, or has ended; its state is [A-Z] \(\w+\)", text), text
    assert iterator._workers[0].is_alive()
    iterator.close()


def test_a_worker_that_has_ended_has_no_stack() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    stacks = StackMemory()
    try:
        assert stacks.stack_of(child.pid) == "  (it is still being started, or has ended; its state is unknown)"
    finally:
        stacks.close()


@pytest.mark.parametrize("death", ["raise", "respawn"], ids=["an error", "a kill"])
def test_a_batch_that_comes_while_its_timeout_is_looked_into(death: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a stack takes half a second.  If the batch comes meanwhile, that is no timeout and no kill."""
    comes = torch.multiprocessing.get_context("fork").Event()

    class Waits(Augmented):
        def __getitem__(self, index: int) -> Any:
            assert index != 1 or comes.wait(60)
            return os.getpid()

    def answer(stacks: StackMemory, pid: int) -> str:
        comes.set()
        while not iterator._ring.ready():
            time.sleep(0.01)
        return "  here"

    monkeypatch.setattr(StackMemory, "stack_of", answer)
    options: Any = {"num_workers": 1, "multiprocessing_context": "fork", "on_worker_death": death}
    iterator = iter(shmloader.DataLoader(Waits(4), timeout=0.5, **options))
    assert torch.cat(list(iterator)).tolist() == [iterator._workers[0].pid] * 4


def test_hung_workers_are_replaced(tmp_path: pathlib.Path) -> None:
    options = {"batch_size": 4, "num_workers": 2}
    dataset = deadly(tmp_path, {9: 1, 30: 1}, how=hang)
    loader = shmloader.DataLoader(dataset, timeout=2, on_worker_death="respawn", **options)
    seed_all()
    got = list(loader)
    seed_all()
    assert_same(got, list(torch.utils.data.DataLoader(Augmented(40), **options)))


@pytest.mark.long
def test_the_third_time_a_batch_hangs(tmp_path: pathlib.Path) -> None:
    dataset = deadly(tmp_path, {9: 3}, how=hang)
    loader = shmloader.DataLoader(dataset, batch_size=4, num_workers=2, timeout=2, on_worker_death="respawn")
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    text = str(caught.value)
    assert text.startswith("DataLoader timed out after 2 seconds\n") and "in hang" in text
    assert "3 workers have died while making batch 2 of this epoch (indices [8, 9, 10, 11])" in text
    loader.close()


@pytest.mark.parametrize("death", ["raise", "respawn"])
def test_a_timeout_while_all_workers_are_still_starting_names_nobody(tmp_path: pathlib.Path, death: str) -> None:
    def start(worker_id: int) -> None:
        while not (tmp_path / "start").exists():
            time.sleep(0.01)

    loader = shmloader.DataLoader(
        Augmented(40), num_workers=2, schedule="steal", timeout=0.2, worker_init_fn=start, on_worker_death=death
    )
    iterator = iter(loader)
    pids = [worker.pid for worker in iterator._workers]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^DataLoader timed out after 0\.2 seconds$"):
            next(iterator)
    (tmp_path / "start").touch()
    assert [worker.pid for worker in iterator._workers if worker.is_alive()] == pids, "nobody was killed for it"
    loader.close()


def test_what_a_worker_leaves() -> None:
    from shmloader.worker import random_states

    seed_all()
    numpy.random.randn(1)  # leaves half a pair of Gaussians behind
    left = random_states.states()
    drawn = [random.random(), numpy.random.randn(3).tolist(), torch.rand(3).tolist(), random.gauss(0, 1)]
    seed_all(8)
    random_states.restore(left)
    assert [random.random(), numpy.random.randn(3).tolist(), torch.rand(3).tolist(), random.gauss(0, 1)] == drawn
