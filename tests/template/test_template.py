"""A template process unpickles the dataset once and forks all workers: NOTE [ Template ]."""

from __future__ import annotations

import errno
import gc
import os
import pathlib
import random
import resource
import select
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy
import psutil
import pytest
import torch
from conftest import BOTH, Augmented, assert_same, seed_all
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import shmloader
from shmloader.template import messages
from shmloader.template.running import Running

SPAWNED = {"multiprocessing_context": "spawn", "template": True}


class Where(Dataset[Any]):
    """Each sample says which process made it, and which one unpickled the dataset."""

    def __init__(self, length: int = 16) -> None:
        self.length = length
        self.value = 0
        self.unpickled = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.unpickled = os.getpid()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[int]:
        return [index, os.getpid(), os.getppid(), self.unpickled, self.value]


class Deadly(Where):
    """The worker that makes a certain sample ends, as long as a file is there."""

    def __init__(self, token: pathlib.Path, at: int = 5, how: Any = None) -> None:
        super().__init__()
        self.token, self.at, self.how = token, at, how
        token.touch()

    def __getitem__(self, index: int) -> list[int]:
        if index == self.at and self.token.exists():
            self.token.unlink()
            (self.how or die)()
        return super().__getitem__(index)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    raise SystemExit(3)


def kill_template() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


class Epoch:
    """What the samples of an epoch of Where say."""

    def __init__(self, loader: Any) -> None:
        rows = torch.cat([torch.stack(batch, 1) for batch in loader])
        self.indices, *sets = rows[:, 0].tolist(), *(set(rows[:, column].tolist()) for column in range(1, 5))
        self.workers, self.parents, self.unpickled, self.values = sets

    @property
    def template(self) -> int:
        assert self.parents == self.unpickled
        (pid,) = self.parents
        return int(pid)


def test_one_process_unpickles_the_dataset_and_forks_all_workers() -> None:
    """In later epochs too; a dataset that was changed is seen as it is then."""
    with shmloader.DataLoader(Where(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        first, second = Epoch(loader), Epoch(loader)
        assert first.indices == second.indices == list(range(16))
        assert first.template == second.template
        assert psutil.Process(first.template).ppid() == os.getpid()
        assert len(first.workers | second.workers) == 4
        assert first.values == {0}
        loader.dataset.value = 7
        third = Epoch(loader)
        assert third.values == {7}
        template = psutil.Process(third.template)
    assert not template.is_running()


def test_a_killed_worker_is_replaced_by_the_template(tmp_path: pathlib.Path) -> None:
    dataset = Deadly(tmp_path / "token")
    with shmloader.DataLoader(dataset, batch_size=2, num_workers=2, on_worker_death="respawn", **SPAWNED) as loader:
        epoch = Epoch(loader)
        assert epoch.indices == list(range(16))
        assert epoch.template not in epoch.workers
    assert not (tmp_path / "token").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "cause"),
    [(die, "is killed by signal: Killed."), (leave, "exited unexpectedly with exit code 3.")],
)
def test_the_exit_code_of_a_worker_comes_through(tmp_path: pathlib.Path, how: Any, cause: str) -> None:
    loader = shmloader.DataLoader(Deadly(tmp_path / "token", how=how), batch_size=2, num_workers=2, **SPAWNED)
    with pytest.raises(RuntimeError) as raised:
        list(loader)
    assert "exited unexpectedly\nDataLoader worker (pid" in str(raised.value) and cause in str(raised.value)
    assert "It held batch 2 of this epoch (indices [4, 5])" in str(raised.value)
    assert Epoch(loader).indices == list(range(16))  # and another epoch goes on from the same template
    loader.close()


@pytest.mark.long
def test_the_template_is_killed(tmp_path: pathlib.Path) -> None:
    """Its workers end with it, and the error says what ended them."""
    loader = shmloader.DataLoader(Deadly(tmp_path / "token", how=kill_template), batch_size=2, num_workers=2, **SPAWNED)
    with pytest.raises(RuntimeError, match=r"the template process \(pid \d+\), which forks workers, is killed by sig"):
        list(loader)
    assert Epoch(loader).indices == list(range(16))
    loader.close()


@pytest.mark.long
def test_the_template_is_killed_and_workers_are_replaced(tmp_path: pathlib.Path) -> None:
    dataset = Deadly(tmp_path / "token", how=kill_template)
    with shmloader.DataLoader(dataset, batch_size=2, num_workers=2, on_worker_death="respawn", **SPAWNED) as loader:
        assert list(torch.cat([batch[0] for batch in loader])) == list(range(16))


@pytest.mark.long
def test_the_template_is_killed_between_epochs() -> None:
    with shmloader.DataLoader(Where(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        before = Epoch(loader).template
        os.kill(before, signal.SIGKILL)
        after = Epoch(loader)
        assert after.template != before and after.indices == list(range(16))


@pytest.mark.long
@pytest.mark.parametrize("changed", [False, True])
def test_the_template_was_killed_a_moment_ago(changed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does not show it yet; a request to the template does."""
    with shmloader.DataLoader(Where(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        before = Epoch(loader).template
        os.kill(before, signal.SIGKILL)
        os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(Running, "lives", True)
        loader.dataset.value = 7 if changed else 0
        after = Epoch(loader)
        assert after.template != before and after.values == {7 if changed else 0}
        monkeypatch.undo()


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_torchs(workers: int) -> None:
    """In two epochs, with the generators' states behind them."""
    found = []
    for kind in BOTH:
        seed_all()
        ours = {"template": True} if kind is shmloader.DataLoader else {}
        loader: Any = kind(
            Augmented(), batch_size=4, shuffle=True, num_workers=workers, multiprocessing_context="spawn", **ours
        )
        found.append([list(loader), list(loader), torch.get_rng_state(), random.random()])
    assert_same(found[1], found[0])


class Loud(Where):
    """Cannot be unpickled while a file is there."""

    def __init__(self, token: pathlib.Path) -> None:
        super().__init__()
        self.token = token
        token.touch()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.token.exists():
            raise ValueError("broken")


@pytest.mark.long
def test_a_dataset_that_cannot_be_unpickled(tmp_path: pathlib.Path) -> None:
    loader = shmloader.DataLoader(Loud(tmp_path / "token"), batch_size=2, num_workers=2, **SPAWNED)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"could not unpickle the dataset:\n(.|\n)*ValueError: broken$"):
            iter(loader)
    (tmp_path / "token").unlink()
    assert Epoch(loader).indices == list(range(16))
    loader.close()


class Ends(Where):
    def __setstate__(self, state: dict[str, Any]) -> None:
        os._exit(4)


class Leaves(Where):
    def __setstate__(self, state: dict[str, Any]) -> None:
        raise SystemExit("x" * 100_000 + "the end")


@pytest.mark.long
def test_a_dataset_that_ends_the_process_while_it_is_unpickled() -> None:
    with pytest.raises(
        RuntimeError, match=r"ended with exit code 4, while it imported the script or unpickled [a-z ]+\.$"
    ):
        iter(shmloader.DataLoader(Ends(), num_workers=1, **SPAWNED))
    with pytest.raises(RuntimeError, match=r"could not unpickle the dataset:\nx+the end$"):
        iter(shmloader.DataLoader(Leaves(), num_workers=1, **SPAWNED))


class Waits(Where):
    """Waits in its template until the file is gone."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.path = path

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.path.with_suffix(".reached").touch()
        while self.path.exists():
            time.sleep(0.01)


@pytest.mark.long
def test_close_while_another_thread_starts_the_template(tmp_path: pathlib.Path) -> None:
    """The error names the close(), and not a lack of memory, which also ends processes by SIGKILL."""
    path = tmp_path / "held"
    path.touch()
    loader = shmloader.DataLoader(Waits(path), batch_size=2, num_workers=2, **SPAWNED)
    errors: list[BaseException] = []

    def begin() -> None:
        try:
            iter(loader)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    while not path.with_suffix(".reached").exists():
        time.sleep(0.01)
    loader.close()
    thread.join()
    assert isinstance(errors[0], RuntimeError) and "The loader was closed, by another thread" in str(errors[0])
    path.unlink()
    assert Epoch(loader).indices == list(range(16))
    loader.close()


def test_a_dataset_that_cannot_be_pickled() -> None:
    dataset = Where()
    dataset.value = threading.Lock()  # type: ignore[assignment]
    loader = shmloader.DataLoader(dataset, num_workers=2, **SPAWNED)
    with warnings.catch_warnings(), pytest.raises(TypeError, match="cannot pickle '_thread"):
        warnings.simplefilter("ignore")
        iter(loader)


class Threads(Where):
    """Starts a thread when it is unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        threading.Thread(target=forever, daemon=True).start()


def forever() -> None:
    time.sleep(1000)


@pytest.mark.long
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_are_spawned_where_the_template_has_threads(start: str) -> None:
    loader = shmloader.DataLoader(Threads(), batch_size=2, num_workers=2, multiprocessing_context=start, template=True)
    with pytest.warns(RuntimeWarning, match=f"threads were started by {__name__}") as caught:
        first, second = Epoch(loader), Epoch(loader)
    assert len([one for one in caught if "template" in str(one.message)]) == 1
    assert first.indices == second.indices == list(range(16))
    assert first.workers == first.unpickled  # each for itself


class Stream(IterableDataset[int]):
    """Each worker's part of a range.  Where it is, it says itself."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        while self.at < 20:
            self.at += 1
            if self.at % info.num_workers == info.id:
                yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.long
def test_a_stream_goes_on_from_a_state() -> None:
    def loader() -> Any:
        return shmloader.DataLoader(Stream(), batch_size=2, num_workers=2, **SPAWNED)

    with loader() as whole:
        iterator = iter(whole)
        got = [next(iterator) for _ in range(3)]
        state = whole.state_dict()
        rest = list(iterator)
        assert sorted(torch.cat([*got, *rest]).tolist()) == list(range(1, 21))
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert_same(list(resumed), rest)
        again = torch.cat(list(resumed))
        assert sorted(again.tolist()) == list(range(1, 21))


class Greets:
    """A worker_init_fn that shares an object with the dataset."""

    def __init__(self, dataset: Where) -> None:
        self.dataset = dataset

    def __call__(self, worker: int) -> None:
        self.dataset.value = worker + 100


@pytest.mark.long
def test_the_init_function_and_the_dataset_are_unpickled_together() -> None:
    dataset = Where()
    with shmloader.DataLoader(
        dataset, batch_size=2, num_workers=2, worker_init_fn=Greets(dataset), **SPAWNED
    ) as loader:
        assert Epoch(loader).values == Epoch(loader).values == {100, 101}


@pytest.mark.long
def test_next_epochs_begin_early() -> None:
    with shmloader.DataLoader(
        Where(), batch_size=2, num_workers=2, persistent_workers=True, prefetch_epochs=True, **SPAWNED
    ) as loader:
        epochs = [Epoch(loader) for _ in range(3)]
    assert [epoch.indices for epoch in epochs] == [list(range(16))] * 3
    assert len(set.union(*(epoch.workers for epoch in epochs))) == 2


@pytest.mark.long
def test_an_iterator_outlives_its_loader() -> None:
    iterator = iter(shmloader.DataLoader(Where(), batch_size=2, num_workers=2, **SPAWNED))
    gc.collect()
    found = [next(iterator) for _ in range(2)]
    template = psutil.Process(int(found[0][2][0]))
    assert template.is_running()
    assert len(list(iterator)) == 6
    del iterator
    gc.collect()
    assert not template.is_running()


class Tensors(Where):
    """More tensors than a packet has descriptors."""

    def __init__(self, count: int = 450) -> None:
        super().__init__()
        self.parts = [torch.full((2,), number) for number in range(count)]
        self.value = 0

    def __getitem__(self, index: int) -> list[int]:
        return [*super().__getitem__(index)[:-1], sum(int(part[0]) for part in self.parts)]


@pytest.mark.long
def test_tensors_are_shared_and_a_write_into_one_is_no_change() -> None:
    dataset = Tensors()
    with shmloader.DataLoader(dataset, batch_size=2, num_workers=2, **SPAWNED) as loader:
        first = Epoch(loader)
        dataset.parts[3][0] = 1000
        second = Epoch(loader)
        dataset.parts[4] = torch.full((2,), 1000)
        third = Epoch(loader)
    total = sum(range(450))
    assert [first.values, second.values, third.values] == [{total}, {total + 997}, {total + 997 + 996}]


class Freed(Where):
    """Says in a worker that it is freed."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.path = path

    def __del__(self) -> None:
        if self.unpickled not in (0, os.getpid()):
            self.path.touch()


@pytest.mark.long
def test_a_worker_does_not_free_the_dataset(tmp_path: pathlib.Path) -> None:
    """That would take long, and copy the pages that it shares with others."""
    with shmloader.DataLoader(Freed(tmp_path / "freed"), batch_size=2, num_workers=2, **SPAWNED) as loader:
        assert Epoch(loader).indices == list(range(16))
    assert not (tmp_path / "freed").exists()


class Passing(Where):
    """Its tensor is made when it is pickled, and nobody keeps it."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": torch.full((1000,), 7)}

    def __getitem__(self, index: int) -> list[int]:
        return [*super().__getitem__(index)[:-1], int(self.made.sum())]


@pytest.mark.long
def test_a_tensor_that_is_made_to_be_pickled() -> None:
    with shmloader.DataLoader(Passing(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        epochs = [Epoch(loader) for _ in range(2)]
    assert [epoch.values for epoch in epochs] == [{7000}] * 2
    assert epochs[0].template == epochs[1].template


@pytest.mark.long
def test_linux_sends_no_more_descriptors_for_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where several ranks start at once; root may send any number."""

    def send(*_: Any) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    loader = shmloader.DataLoader(Tensors(3), batch_size=2, num_workers=1, **SPAWNED)
    monkeypatch.setattr(messages, "send_request", send)
    with pytest.warns(RuntimeWarning, match="its dataset has 3 descriptors for tensors"):
        assert Epoch(loader).indices == list(range(16))
    loader.close()


@pytest.mark.long
def test_a_frozen_dataset() -> None:
    with shmloader.DataLoader(shmloader.freeze(Frozen()), batch_size=2, num_workers=2, **SPAWNED) as loader:
        for _ in range(2):
            assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(16))


class Frozen(Dataset[Any]):
    def __init__(self) -> None:
        self.paths = [f"{number}" for number in range(16)]
        self.table = numpy.arange(16)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[int, int]:
        return int(self.paths[index]), int(self.table[index])


class Environment(Where):
    """Says what a worker finds: a variable, and how many threads it has."""

    def __getitem__(self, index: int) -> list[int]:
        threads = int(os.environ.get("OPENBLAS_NUM_THREADS", "-1"))
        return [index, os.getpid(), os.getppid(), self.unpickled, threads]


@pytest.mark.long
def test_workers_have_the_trainers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with shmloader.DataLoader(Environment(), batch_size=2, num_workers=1, **SPAWNED) as loader:
        assert Epoch(loader).values == {-1}
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
        assert Epoch(loader).values == {3}


class StartsLater(Where):
    """Starts a thread in the template when a worker is asked for, long after the dataset was unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        os.register_at_fork(after_in_parent=threading.Thread(target=forever, daemon=True).start)


@pytest.mark.long
def test_nothing_is_forked_beside_a_thread_that_starts_later() -> None:
    loader = shmloader.DataLoader(StartsLater(), batch_size=2, num_workers=2, **SPAWNED)
    with pytest.warns(RuntimeWarning, match="threads were started there after the dataset was unpickled"):
        assert Epoch(loader).indices == list(range(16))
    assert Epoch(loader).indices == list(range(16))
    loader.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["threads", "broken"])
def test_workers_of_another_iterator_live_on(kind: str, tmp_path: pathlib.Path) -> None:
    """The dataset that the next iterator is to have cannot go into the template, which is still their parent."""
    loader = shmloader.DataLoader(Where(), batch_size=2, num_workers=2, **SPAWNED)
    iterator = iter(loader)
    found = [next(iterator)]
    vars(loader)["dataset"] = Threads() if kind == "threads" else Loud(tmp_path / "token")
    if kind == "threads":
        with pytest.warns(RuntimeWarning, match="template=True has no effect"):
            assert Epoch(loader).indices == list(range(16))
    else:
        with pytest.raises(RuntimeError, match="could not unpickle the dataset"):
            iter(loader)
    found += iterator
    assert torch.cat([batch[0] for batch in found]).tolist() == list(range(16))
    template = psutil.Process(int(found[0][2][0]))
    del iterator
    gc.collect()
    assert not template.is_running()


@pytest.mark.long
def test_a_worker_that_nobody_has_taken_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer may be interrupted between its request and the answer."""
    with shmloader.DataLoader(Where(), batch_size=2, num_workers=1, **SPAWNED) as loader:
        template = psutil.Process(Epoch(loader).template)

        def interrupted(channel: int) -> Any:
            poll = select.poll()
            poll.register(channel, select.POLLIN)
            poll.poll()
            assert len(template.children()) == 1
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(messages, "receive_answer", interrupted)
            iter(loader)
        while template.children():
            time.sleep(0.01)
        assert Epoch(loader).template == template.pid


@pytest.mark.long
def test_no_process_is_left_for_a_worker() -> None:
    """The error is what it is without a template."""
    with shmloader.DataLoader(Where(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        template = Epoch(loader).template
        resource.prlimit(template, resource.RLIMIT_NOFILE, (16, 16))
        with pytest.raises(OSError, match="too many open files: this process may have"):
            iterators = [iter(loader) for _ in range(16)]
            assert iterators


@pytest.mark.long
def test_torch_that_shares_by_name_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
    loader = shmloader.DataLoader(Where(), batch_size=2, num_workers=1, **SPAWNED)
    with pytest.warns(RuntimeWarning, match="template=True has no effect on this loader: torch shares tensors by"):
        assert Epoch(loader).indices == list(range(16))


@pytest.mark.parametrize("given", [None, "fork"])
def test_forked_workers_need_none(given: str | None) -> None:
    with pytest.raises(ValueError, match=r"template=True needs the start method .*, but .* by 'fork'"):
        shmloader.DataLoader(Where(), num_workers=1, multiprocessing_context=given, template=True)
    assert len(list(shmloader.DataLoader(Where(), num_workers=0, template=True))) == 16
