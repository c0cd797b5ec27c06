"""Loaders that share the workers of a crew: each gives what it gives alone, and none is in another's way."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import Augmented, assert_same, seed_all
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import shmloader
from shmloader import Crew
from shmloader.trainer.member import Member

WAYS = ["fork", "spawn", "forkserver", pytest.param("template", marks=pytest.mark.long)]
each_way = pytest.mark.parametrize("way", WAYS)
persistent_or_not = pytest.mark.parametrize("persistent", [False, True])


def crew_by(way: str, workers: int = 2) -> Crew:
    return Crew(workers, multiprocessing_context="spawn" if way == "template" else way, template=way == "template")


def forked(workers: int = 2) -> Crew:
    return crew_by("fork", workers)


def children() -> int:
    """How many children this process has that were not reaped."""
    multiprocessing.active_children()  # reaps those that earlier tests have left to it
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return len(file.read().split())


class Own(Dataset[Any]):
    """Samples that tell whose they are, and what their worker says of itself."""

    def __init__(self, length: int, name: str) -> None:
        self.length, self.name, self.calls = length, name, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        info: Any = get_worker_info()
        mine = info.dataset is self
        return self.name, index, self.calls, random.random(), torch.rand(2), info.id, info.num_workers, info.seed, mine


class Stream(IterableDataset[Any]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        for index in range(self.length):
            yield info.id, index, torch.rand(2)


Datasets = tuple[Callable[[], Any], Callable[[], Any]]


def both(
    make: Callable[..., Any],
    datasets: Datasets,
    persistent: bool,
    at_once: bool,
    options: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    meanwhile: Callable[[int], None] = lambda step: None,
) -> list[list[Any]]:
    """What two loaders give in two epochs, one after the other or at once."""
    seed_all()
    train, validation = (
        make(dataset(), batch_size=size, persistent_workers=persistent, **kwargs)
        for dataset, size, kwargs in zip(datasets, (4, 3), options, strict=True)
    )
    got: list[list[Any]] = []
    for _ in range(2):
        if at_once:
            iterators, batches = [iter(train), iter(validation)], ([], [])
            left, step = [0, 1], 0
            while left:
                for which in list(left):
                    meanwhile(step)
                    step += 1
                    try:
                        batches[which].append(copy.deepcopy(next(iterators[which])))
                    except StopIteration:
                        left.remove(which)
            got += batches
            del iterators
        else:
            got += [copy.deepcopy(list(train)), copy.deepcopy(list(validation))]
    return got


def torchs(way: str) -> Callable[..., Any]:
    method = "fork" if way == "template" else way  # torch's batches are the same by any
    return lambda dataset, **options: torch.utils.data.DataLoader(
        dataset, num_workers=2, multiprocessing_context=method, **options
    )


def of(crew: Crew) -> Callable[..., Any]:
    return lambda dataset, **options: shmloader.DataLoader(dataset, crew=crew, **options)


MAPS: Datasets = (Augmented, lambda: Own(14, "validation"))


# --------------------------------------------------------------------------------------------------- the same batches


@each_way
@persistent_or_not
@pytest.mark.parametrize("at_once", [False, True])
def test_both_give_what_torchs_loaders_give(way: str, persistent: bool, at_once: bool) -> None:
    with crew_by(way) as crew:
        ours = both(of(crew), MAPS, persistent, at_once)
    assert_same(ours, both(torchs(way), MAPS, persistent, at_once))


@persistent_or_not
def test_streams_beside_maps(persistent: bool) -> None:
    datasets: Datasets = (lambda: Stream(10), Augmented)
    with forked() as crew:
        ours = both(of(crew), datasets, persistent, at_once=True)
    assert_same(ours, both(torchs("fork"), datasets, persistent, at_once=True))


def test_stolen_batches_beside_chunks() -> None:
    options = {"schedule": "steal"}, {"chunk_size": 1, "schedule": "steal"}
    datasets: Datasets = (Augmented, lambda: Augmented(12))

    def alone(dataset: Any, **more: Any) -> Any:
        return shmloader.DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **more)

    with forked() as crew:
        ours = both(of(crew), datasets, True, True, options)
    assert_same(ours, both(alone, datasets, True, True, options))


def draw_on(worker: int) -> None:
    random.random()
    torch.utils.data._utils.collate.default_collate_fn_map[complex] = lambda batch, **_: f"{len(batch)} complex"


class Complex(Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return random.random(), complex(index)


def test_what_worker_init_fn_does_is_its_loaders() -> None:
    """It draws a number, and adds to torch's map of collate functions, which is a loader's own."""
    options = {"worker_init_fn": draw_on}, {}
    datasets: Datasets = (Complex, Augmented)
    with forked() as crew:
        ours = both(of(crew), datasets, False, True, options)
        with pytest.raises(TypeError, match="complex"):
            list(shmloader.DataLoader(Complex(), batch_size=4, crew=crew))
    assert_same(ours, both(torchs("fork"), datasets, False, True, options))


def test_a_loader_that_is_added_later() -> None:
    with forked() as crew:
        first = shmloader.DataLoader(Augmented(), batch_size=4, crew=crew)
        iterator = iter(first)
        next(iterator)
        pids = {worker.pid for worker in iterator._workers}
        second = shmloader.DataLoader(Own(6, "later"), batch_size=2, crew=crew, persistent_workers=True)
        assert [batch[1].tolist() for batch in second] == [[0, 1], [2, 3], [4, 5]]
        assert {worker.pid for worker in second._iterator._workers} == pids
        assert len(list(iterator)) == 5


@pytest.mark.parametrize("of_which", [0, 1])
def test_a_state_of_either_in_mid_epoch(of_which: int) -> None:
    def loaders(crew: Crew) -> list[Any]:
        seed_all()
        return [
            shmloader.DataLoader(Augmented(), batch_size=4, shuffle=True, sample_seeds=True, crew=crew),
            shmloader.DataLoader(Augmented(15), batch_size=2, sample_seeds=True, crew=crew),
        ]

    with forked() as crew:
        made = loaders(crew)
        iterators = [iter(loader) for loader in made]
        for iterator in iterators:
            next(iterator), next(iterator)
        state, rest = made[of_which].state_dict(), copy.deepcopy(list(iterators[of_which]))
    with forked(3) as crew:
        made = loaders(crew)
        made[of_which].load_state_dict(state)
        assert_same(list(made[of_which]), rest)


class Meeting(Dataset[Any]):
    """Writes down which sample is made, in a file; the first one waits until it is let go."""

    def __init__(self, name: str, log: Path, gate: int | None = None) -> None:
        self.name, self.log, self.gate = name, log, gate

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        with open(self.log, "a") as file:
            file.write(f"{self.name}{index} ")
        if self.gate is not None and index == 0:
            os.read(self.gate, 1)
        return index


def test_a_worker_makes_what_is_wanted_first(tmp_path: Path) -> None:
    """Training has four batches open when validation begins: that one's turn comes at once, and neither starves."""
    log, (gate, let_go) = tmp_path / "log", os.pipe()
    with forked(1) as crew:
        train = shmloader.DataLoader(Meeting("t", log, gate), prefetch_factor=4, crew=crew, persistent_workers=True)
        validation = shmloader.DataLoader(Meeting("v", log), prefetch_factor=4, crew=crew, persistent_workers=True)
        training = iter(train)
        while not (log.exists() and log.read_text()):
            time.sleep(0.001)
        other = iter(validation)
        os.write(let_go, b".")
        while len(made := log.read_text().split()) < 8:  # nothing is taken yet
            time.sleep(0.001)
        assert made == ["t0", "v0", "t1", "v1", "t2", "v2", "t3", "v3"]
        assert len(list(other)) == len(list(training)) == 6
        made = log.read_text().split()
        assert sorted(made) == sorted([*(f"t{k}" for k in range(6)), *(f"v{k}" for k in range(6))])
    os.close(gate)
    os.close(let_go)


# -------------------------------------------------------------------------------------------------------------- memory


class Large(Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 << 20,), index, dtype=torch.uint8)


def committed(loader: Any) -> int:
    return int(loader._iterator._ring.committed_in_all())


def test_who_rests_gives_its_memory_to_who_works() -> None:
    with forked() as crew:
        train, validation = (
            shmloader.DataLoader(Large(), batch_size=1, crew=crew, persistent_workers=True) for _ in range(2)
        )
        for _ in range(2):
            for working, resting in (train, validation), (validation, train):
                assert [int(batch[0, 7]) for batch in working] == list(range(16))
                del resting  # (its figures are looked at below)
            assert committed(validation) > 4 << 20 > 1 << 20 > committed(train)
        first = next(iter(train))
        assert committed(train) > 1 << 20 > committed(validation)
        assert [int(batch[0, 7]) for batch in validation] == list(range(16))
        assert committed(validation) < 1 << 20 < committed(train), "training is in mid-epoch, so validation gives back"
        assert int(first[0, 7]) == 0


def test_what_is_lent_stays() -> None:
    with forked() as crew:
        train, validation = (
            shmloader.DataLoader(Large(), batch_size=1, crew=crew, persistent_workers=True) for _ in range(2)
        )
        last_two = list(train)[-2:]
        list(validation)
        list(train)
        assert [int(batch.unique()) for batch in last_two] == [14, 15]


def test_a_crew_has_the_processes_of_one_loader() -> None:
    before = children()
    with forked(3) as crew:
        loaders = [shmloader.DataLoader(range(4), crew=crew, persistent_workers=True) for _ in range(3)]
        assert [len(list(loader)) for loader in loaders] == [4, 4, 4]
        assert children() == before + 3
    assert children() == before


# ----------------------------------------------------------------------------------------------- errors, deaths, hangs


class Failing(Augmented):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise ValueError("nine")
        return super().__getitem__(index)


def test_an_exception_is_its_loaders() -> None:
    with forked() as crew:
        failing = shmloader.DataLoader(Failing(), batch_size=4, crew=crew)
        fine = shmloader.DataLoader(Augmented(), batch_size=4, crew=crew)
        one, other = iter(failing), iter(fine)
        for step in range(6):
            if step == 2:
                with pytest.raises(ValueError, match="nine"):
                    next(one)
            else:
                assert next(one)["i"][0] == 4 * step
            assert next(other)["i"][0] == 4 * step


class Unloadable:
    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise OSError("it cannot be unpickled")


def test_a_dataset_that_cannot_be_unpickled_comes_as_the_first_batch() -> None:
    with forked() as crew:
        fine = shmloader.DataLoader(Augmented(), batch_size=4, crew=crew)
        iterator = iter(fine)
        next(iterator)
        dataset: Any = Own(4, "")
        dataset.name = Unloadable()
        with pytest.raises(OSError, match="it cannot be unpickled"):
            list(shmloader.DataLoader(dataset, crew=crew))
        assert len(list(iterator)) == 5


def test_what_cannot_be_pickled_is_refused_with_the_remedy_or_forked() -> None:
    message = r"The crew's workers already run.*give this loader persistent_workers=True"
    with forked() as crew, pytest.raises(Exception, match=message):
        list(shmloader.DataLoader(range(4), collate_fn=lambda samples: samples, crew=crew))
    with forked() as crew:
        loaders = [
            shmloader.DataLoader(range(4), collate_fn=lambda samples: samples, crew=crew, persistent_workers=True)
            for _ in range(2)
        ]
        assert [list(loader) for loader in loaders] == [[[0], [1], [2], [3]]] * 2


def test_a_death_is_an_error_in_each_that_does_not_respawn_and_the_next_epoch_has_another_worker() -> None:
    with forked() as crew:
        one, other = (
            shmloader.DataLoader(Augmented(), batch_size=4, crew=crew, persistent_workers=True) for _ in range(2)
        )
        iterators = [iter(one), iter(other)]
        for iterator in iterators:
            next(iterator)
        os.kill(iterators[0]._workers[1].pid, signal.SIGKILL)
        for iterator in iterators:
            with pytest.raises(RuntimeError, match=r"DataLoader worker .* is killed by signal: Killed"):
                list(iterator)
        for loader in one, other:
            loader.close()
            assert len(list(loader)) == 6


@each_way
@persistent_or_not
def test_a_dead_worker_is_replaced_for_both(way: str, persistent: bool) -> None:
    options = ({"on_worker_death": "respawn"},) * 2
    datasets: Datasets = (Augmented, lambda: Augmented(14))
    with crew_by(way) as crew:

        def kill(step: int) -> None:
            if step in (3, 8):
                os.kill(crew._workers.workers[step % 2].pid, signal.SIGKILL)

        ours = both(of(crew), datasets, persistent, True, options, kill)
    assert_same(ours, both(torchs(way), datasets, persistent, True))


def test_a_death_is_not_forgotten_that_comes_while_another_worker_is_replaced() -> None:
    with forked() as crew:

        def kill(step: int) -> None:
            if step == 3:
                shared = crew._workers
                shared.workers[0].kill()
                while not shared._ended:
                    time.sleep(0.001)
                shared._stop_watch()  # as it is before a fork: nobody sees the next death
                shared.workers[1].kill()
                shared.workers[1].join()

        options = ({"on_worker_death": "respawn"},) * 2
        datasets: Datasets = (Augmented, lambda: Augmented(14))
        ours = both(of(crew), datasets, True, True, options, kill)
    assert_same(ours, both(torchs("fork"), datasets, True, True))


class Deadly(Dataset[Any]):
    """Kills its worker as often as there are lines in a file."""

    def __init__(self, lives: Path) -> None:
        self.lives = lives

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 4 and (left := self.lives.read_text()):
            self.lives.write_text(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_deaths_count_for_the_batch_that_the_dead_worker_held(tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.write_text("xxx")
    with forked(1) as crew:
        fine = shmloader.DataLoader(Augmented(), batch_size=4, crew=crew, on_worker_death="respawn", prefetch_factor=1)
        deadly = shmloader.DataLoader(Deadly(lives), batch_size=4, crew=crew, on_worker_death="respawn")
        iterator = iter(fine)
        next(iterator)
        with pytest.raises(RuntimeError, match="It is the 3rd worker to die while making batch 1"):
            list(deadly)
        assert len(list(iterator)) == 5


class Slow(Dataset[Any]):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds)
        return index


def test_a_timeout_names_the_other_loader_and_kills_nothing_of_it() -> None:
    with forked(1) as crew:
        slow = shmloader.DataLoader(Slow(1.0), crew=crew)
        quick = shmloader.DataLoader(Slow(0.0), crew=crew, timeout=0.2, on_worker_death="respawn")
        iterator = iter(slow)
        pid = iterator._workers[0].pid
        while not iterator._ring.sequences.holds(0):
            time.sleep(0.001)
        with pytest.raises(
            RuntimeError, match=r"(?s)timed out after 0.2 seconds.*another loader of its crew \(dataset: Slow\)"
        ):
            list(quick)
        assert int(next(iterator)) == 0
        assert crew._workers.workers[0].pid == pid


# ------------------------------------------------------------------------------------------------------------- the end


def test_one_is_closed_while_the_other_is_iterated() -> None:
    with forked() as crew:
        one, other = (shmloader.DataLoader(Slow(0.01), crew=crew) for _ in range(2))
        first, second = iter(one), iter(other)
        next(first), next(second)
        one.close()
        assert list(first) == []
        assert len(list(second)) == 3
        assert len(list(one)) == 4


def test_the_crew_is_closed_first_and_starts_again() -> None:
    before = children()
    crew = forked()
    loader = shmloader.DataLoader(range(8), crew=crew, persistent_workers=True)
    iterator = iter(loader)
    first = next(iterator)
    crew.close()
    crew.close()
    assert children() == before
    assert list(iterator) == [] and int(first) == 0
    assert len(list(loader)) == 8
    crew.close()


@persistent_or_not
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.timeout(60)
def test_the_crew_is_closed_while_another_thread_is_in_iter(
    monkeypatch: pytest.MonkeyPatch, started: bool, persistent: bool
) -> None:
    inside, closed, errors = threading.Event(), threading.Event(), []
    join = Member.start

    def join_when_closed(member: Member, *given: Any) -> None:
        inside.set()
        assert closed.wait(20)
        join(member, *given)

    def iterate() -> None:
        try:
            list(loader)
        except RuntimeError as error:
            errors.append(str(error))

    before = children()
    with forked() as crew:
        loader, other = (shmloader.DataLoader(range(8), crew=crew, persistent_workers=persistent) for _ in range(2))
        if started:
            list(other)
        monkeypatch.setattr(Member, "start", join_when_closed)
        thread = threading.Thread(target=iterate, daemon=True)
        thread.start()
        assert inside.wait(20)
        crew.close()
        closed.set()
        thread.join(20)
        assert not thread.is_alive()
        assert [error.partition(".")[0] for error in errors] == [
            "The crew was closed by another thread or a signal's handler"
        ]
        monkeypatch.undo()
        assert len(list(loader)) == 8
    assert children() == before


@pytest.mark.parametrize("order", ["loaders first", "crew first", "an iterator last"])
def test_they_are_collected_in_any_order(order: str) -> None:
    crew: Any = forked()
    loaders: Any = [shmloader.DataLoader(range(8), crew=crew, persistent_workers=True) for _ in range(2)]
    iterators: Any = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    del iterator
    pids = [worker.pid for worker in crew._workers.workers]
    if order == "loaders first":
        del loaders, iterators
        gc.collect()
        assert all(map(psutil.pid_exists, pids))
        del crew
    elif order == "crew first":
        del crew
        gc.collect()
        assert all(map(psutil.pid_exists, pids))
        del loaders, iterators
    else:
        iterators = iterators[:1]
        del crew, loaders
        gc.collect()
        assert len(list(iterators[0])) == 7
        del iterators
    gc.collect()
    assert not any(map(psutil.pid_exists, pids))


def test_threads_iterate_two_loaders() -> None:
    with forked() as crew:
        loaders = [shmloader.DataLoader(Augmented(200), batch_size=4, crew=crew) for _ in range(2)]
        seen: list[int] = []
        threads = [
            threading.Thread(target=lambda loader=loader: seen.append(sum(len(batch["i"]) for batch in loader)))
            for loader in loaders
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [200, 200]


def test_ctrl_c_leaves_both_loaders_whole() -> None:
    with forked() as crew:
        one, other = (shmloader.DataLoader(Slow(0.05), crew=crew, persistent_workers=True) for _ in range(2))
        first, second = iter(one), iter(other)
        timer = threading.Timer(0.02, signal.raise_signal, [signal.SIGINT])
        got: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # in here, because a busy machine may take longer than that to get here
            while True:
                got += [int(batch) for batch in first]
                first = iter(one)
        timer.join()
        assert [int(batch) for batch in second] == [0, 1, 2, 3]
        assert [int(batch) for batch in one] == [0, 1, 2, 3]


def test_a_forked_trainer_has_workers_of_its_own() -> None:
    with forked() as crew:
        loader = shmloader.DataLoader(range(8), crew=crew)
        assert len(list(loader)) == 8
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = 0 if len(list(loader)) == 8 else 2
                crew.close()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(list(loader)) == 8


SCRIPT = """
import shmloader
crew = shmloader.Crew(2, multiprocessing_context="fork")
loaders = [shmloader.DataLoader(range(64), crew=crew, persistent_workers=True) for _ in range(2)]
iterators = [iter(loader) for loader in loaders]
for iterator in iterators:
    next(iterator)
print(*(worker.pid for worker in iterators[0]._workers))
"""


def test_the_interpreter_ends_with_a_crew_at_work() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ended.stdout.split())


# -------------------------------------------------------------------------------------------------------------- asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 3}, "num_workers=3, but the crew has 2"),
        ({"multiprocessing_context": "spawn"}, "is not the crew's"),
        ({"template": True}, "Give it to shmloader.Crew"),
        ({"workers_outlive_signals": False}, "Give it to shmloader.Crew"),
    ],
)
def test_what_is_the_crews_is_refused_of_a_loader(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shmloader.DataLoader(range(4), crew=forked(), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers should be a positive integer, but got num_workers=0"),
        ({"num_workers": 2, "multiprocessing_context": "threads"}, "got multiprocessing_context='threads'"),
        ({"num_workers": 2, "template": 1}, "template should be True or False, but got template=1"),
        ({"num_workers": 2, "multiprocessing_context": "fork", "template": True}, "'spawn' or 'forkserver'"),
    ],
)
def test_a_crew_checks_what_it_is_given(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Crew(**arguments)


def test_a_copy_is_the_crew_itself() -> None:
    crew = forked()
    assert copy.copy(crew) is copy.deepcopy(crew) is pickle.loads(pickle.dumps(crew)) is crew
    made = shmloader.DataLoader(range(4), crew=crew)
    assert copy.deepcopy(made).crew is crew and made.num_workers == 2


def test_loaders_that_others_build_have_the_crew() -> None:
    dataset = Augmented()
    with forked() as crew:
        made = shmloader.DataLoader(dataset, batch_size=4, crew=crew)
        with shmloader.patch_torch():  # as accelerate does
            again: Any = torch.utils.data.DataLoader(
                dataset, batch_sampler=made.batch_sampler, num_workers=made.num_workers, collate_fn=made.collate_fn
            )
        assert again.crew is crew
        assert len(list(again)) == len(list(made)) == 6
        with shmloader.patch_torch(crew=crew):
            given: Any = torch.utils.data.DataLoader(range(4), num_workers=2)
        assert given.crew is crew and len(list(given)) == 4


def test_an_async_loader_of_a_crew() -> None:
    with forked() as crew:
        validation = shmloader.DataLoader(Augmented(), batch_size=4, crew=crew)
        with shmloader.AsyncDataLoader(lambda count: list(range(count)), 4, "cpu", crew=crew) as loader:
            for _ in range(3):
                assert next(loader).tolist() == [0, 1, 2, 3]
                assert len(list(validation)) == 6
