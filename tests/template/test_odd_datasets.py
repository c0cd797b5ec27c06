"""Datasets that change the process in which they are unpickled, as they may change a spawned worker."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from template.test_template import SPAWNED, Epoch, Where

import shmloader

pytestmark = pytest.mark.long


class Odd(Where):
    """Does something when it is unpickled; `value` is what `see` finds in a worker."""

    def __init__(self) -> None:
        super().__init__()
        del self.value

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.do()

    def do(self) -> None:
        raise NotImplementedError

    def see(self) -> int:
        return 0

    def __getattr__(self, name: str) -> int:
        if name == "value":
            return self.see()
        raise AttributeError(name)


class Goes(Odd):
    """Into another folder."""

    def do(self) -> None:
        os.chdir("/usr")

    def see(self) -> int:
        return int(os.getcwd() == "/usr")


class Sets(Odd):
    """Variables and folders of modules."""

    def do(self) -> None:
        os.environ["OF_THE_DATASET"] = "1"
        sys.path.append("/of/the/dataset")

    def see(self) -> int:
        return int(os.environ.get("OF_THE_DATASET") == "1" and "/of/the/dataset" in sys.path)


class Ignores(Odd):
    """Its children, so that nobody can wait for them."""

    def do(self) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def see(self) -> int:
        return 1


class Reaps(Ignores):
    """All children, whosever they are."""

    def do(self) -> None:
        signal.signal(signal.SIGCHLD, reap)


def reap(*_: Any) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Blocks(Ignores):
    def do(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})


class Starts(Ignores):
    """A process, a program and a thread, all of which have ended."""

    def do(self) -> None:
        if not (pid := os.fork()):
            os._exit(0)
        os.waitpid(pid, 0)
        subprocess.run(["true"], check=True)
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


class Limits(Ignores):
    def do(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@pytest.mark.parametrize("kind", [Goes, Sets, Ignores, Reaps, Blocks, Starts, Limits])
def test_workers_have_what_the_dataset_has_done(kind: type[Odd]) -> None:
    with shmloader.DataLoader(kind(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        epochs = [Epoch(loader) for _ in range(2)]
    assert [epoch.indices for epoch in epochs] == [list(range(16))] * 2
    assert [epoch.values for epoch in epochs] == [{1}] * 2
    assert epochs[0].template == epochs[1].template


class Locked(Odd):
    """A lock and a pipe of multiprocessing, which all processes share."""

    def __init__(self) -> None:
        super().__init__()
        context = multiprocessing.get_context("spawn")
        self.lock, self.pipe = context.Lock(), context.Pipe(duplex=False)

    def do(self) -> None:
        pass

    def see(self) -> int:
        with self.lock:
            self.pipe[1].send(1)
        return 1


def test_what_processes_share_is_shared() -> None:
    dataset = Locked()
    with shmloader.DataLoader(dataset, batch_size=2, num_workers=2, **SPAWNED) as loader:
        epochs = [Epoch(loader) for _ in range(2)]
    assert epochs[0].template == epochs[1].template
    assert [dataset.pipe[0].recv() for _ in range(32)] == [1] * 32
    for end in dataset.pipe:
        end.close()


class Folder(Odd):
    def do(self) -> None:
        pass

    def see(self) -> int:
        return os.stat(".").st_ino


def test_workers_are_in_the_folder_of_the_trainer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is when they start, also where it is another one than when the template did."""
    with shmloader.DataLoader(Folder(), batch_size=2, num_workers=2, **SPAWNED) as loader:
        first = Epoch(loader)
        assert first.values == {os.stat(".").st_ino}
        monkeypatch.chdir(tmp_path)
        second = Epoch(loader)
        assert second.values == {tmp_path.stat().st_ino}
        assert first.template == second.template
