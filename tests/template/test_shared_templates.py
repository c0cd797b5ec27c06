"""Loaders over one dataset share a template, also one after another: so each but the first one starts at once."""

from __future__ import annotations

import copy
import gc
import os
import pathlib
import signal
import threading
import time
from typing import Any

import psutil
import pytest
import torch
from scripts import run_script
from template.test_template import SPAWNED, Epoch, Threads, Where

import shmloader
from shmloader.template import messages
from shmloader.template import template as template_module


class Counted(Where):
    """Its value says how often a process has unpickled such a dataset; `changed` is there to be changed."""

    unpickled_here = 0
    changed = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        Counted.unpickled_here += 1
        self.value = Counted.unpickled_here


def made(dataset: Any, **options: Any) -> Any:
    return shmloader.DataLoader(dataset, **{"batch_size": 2, "num_workers": 2, **SPAWNED, **options})


def collate(samples: Any) -> Any:
    return torch.utils.data.default_collate(samples)


class Collate:
    """Equal to another one of its kind in its pickle only."""

    def __call__(self, samples: Any) -> Any:
        return torch.utils.data.default_collate(samples)


def init(worker: int) -> None:
    pass


def test_a_loader_that_is_made_again_in_each_epoch() -> None:
    dataset = Counted()
    epochs = []
    for options in ({}, {"batch_size": 4}, {"multiprocessing_context": "forkserver"}, {"num_workers": 1}):
        loader = made(dataset, **options)
        epochs.append(Epoch(loader))
        del loader
        gc.collect()
    assert [epoch.indices for epoch in epochs] == [list(range(16))] * 4
    assert len({epoch.template for epoch in epochs}) == 1
    assert [epoch.values for epoch in epochs] == [{1}] * 4, "it was unpickled once"


@pytest.mark.long
def test_equal_functions_of_two_loaders() -> None:
    """A loader that is made again while the one before is still there, with a function of the same contents."""
    dataset = Counted()
    first = made(dataset, collate_fn=Collate())
    second = made(dataset, collate_fn=Collate())
    epochs = [Epoch(first), Epoch(second), Epoch(first), Epoch(copy.copy(second))]
    assert len({epoch.template for epoch in epochs}) == 1
    assert [epoch.values for epoch in epochs] == [{1}] * 4
    first.close()
    second.close()


@pytest.mark.long
@pytest.mark.parametrize("other", [{"collate_fn": collate}, {"worker_init_fn": init}])
def test_functions_that_differ_have_a_template_each(other: dict[str, Any]) -> None:
    """By turns neither has the dataset unpickled again."""
    dataset = Counted()
    train, test = made(dataset), made(dataset, **other)
    epochs = [Epoch(loader) for loader in (train, test, train, test)]
    assert len({epoch.template for epoch in epochs}) == 2
    assert [epoch.values for epoch in epochs] == [{1}] * 4
    del train
    gc.collect()
    train = made(dataset)
    assert Epoch(train).template == epochs[0].template
    train.close()
    assert Epoch(test).template == epochs[1].template
    test.close()


@pytest.mark.long
def test_a_function_that_is_another_one_in_each_epoch_takes_no_further_process() -> None:
    dataset = Counted()
    found = []
    for function in (None, collate, Collate(), None):
        loader = made(dataset, collate_fn=function)
        found.append(Epoch(loader))
        del loader
        gc.collect()
    assert len({epoch.template for epoch in found}) == 1
    assert [epoch.values for epoch in found] == [{1}, {2}, {3}, {4}]


@pytest.mark.long
def test_a_changed_dataset_is_unpickled_once_for_all_its_loaders() -> None:
    dataset = Counted()
    one, other = made(dataset), made(dataset)
    epochs = [Epoch(one), Epoch(other)]
    dataset.changed = 1
    epochs += [Epoch(one), Epoch(other), Epoch(one)]
    assert len({epoch.template for epoch in epochs}) == 1
    assert [epoch.values for epoch in epochs] == [{1}, {1}, {2}, {2}, {2}]
    one.close()
    other.close()


class Slow(Counted):
    """A worker dies over sample 13 as long as a file is there."""

    def __init__(self, token: pathlib.Path) -> None:
        super().__init__()
        self.token = token
        token.touch()

    def __getitem__(self, index: int) -> list[int]:
        if index == 13 and self.token.exists():
            self.token.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        found = super().__getitem__(index)
        return [*found[:-1], self.changed]


@pytest.mark.long
def test_a_worker_that_is_replaced_finds_the_dataset_of_its_epoch(tmp_path: pathlib.Path) -> None:
    """Another loader has begun an epoch meanwhile, with the dataset as it is then."""
    dataset = Slow(tmp_path / "token")
    one = made(dataset, on_worker_death="respawn", prefetch_factor=1)
    iterator = iter(one)
    found = [next(iterator)]
    (tmp_path / "token").rename(tmp_path / "later")
    dataset.changed = 7
    other = made(dataset)
    assert Epoch(other).values == {7}
    (tmp_path / "later").rename(tmp_path / "token")
    found += iterator
    assert not (tmp_path / "token").exists()
    rows = torch.cat([torch.stack(batch, 1) for batch in found])
    assert rows[:, 0].tolist() == list(range(16))
    assert set(rows[:, 4].tolist()) == {0}
    assert Epoch(one).values == {7}
    one.close()
    other.close()


@pytest.mark.long
def test_a_loader_is_closed_while_another_one_iterates() -> None:
    dataset = Where()
    one, other = made(dataset), made(dataset)
    iterator = iter(one)
    template = psutil.Process(int(next(iterator)[2][0]))
    assert Epoch(other).template == template.pid
    other.close()
    assert len(list(iterator)) == 7
    assert Epoch(one).template == template.pid
    one.close()
    assert not template.is_running()
    again = Epoch(other)
    assert again.template != template.pid
    other.close()
    assert not psutil.pid_exists(again.template)


@pytest.mark.long
def test_a_loader_is_closed_while_an_iterator_goes_on_that_has_outlived_its_own() -> None:
    dataset = Where()
    iterator = iter(made(dataset))
    gc.collect()
    found = [next(iterator)]
    other = made(dataset)
    template = psutil.Process(Epoch(other).template)
    assert template.pid == int(found[0][2][0])
    other.close()
    found += iterator
    assert torch.cat([batch[0] for batch in found]).tolist() == list(range(16))
    del iterator, other
    gc.collect()
    assert not template.is_running()


@pytest.mark.long
@pytest.mark.parametrize("survivor", ["the dataset", "the loader"])
def test_a_template_ends_with_its_loaders_and_the_dataset(survivor: str) -> None:
    dataset = Where()
    loader = made(dataset)
    template = psutil.Process(Epoch(loader).template)
    if survivor == "the dataset":
        del loader
    else:
        del dataset
    gc.collect()
    assert template.is_running()
    dataset = loader = None  # type: ignore[assignment]
    gc.collect()
    assert not template.is_running()


class Numbers:
    """Cannot be referred to weakly, as a list cannot."""

    __slots__ = ()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> list[int]:
        return [index, os.getpid(), os.getppid(), os.getppid(), 0]


@pytest.mark.long
def test_a_dataset_without_weak_references_has_one_with_its_loader() -> None:
    dataset = Numbers()
    one, other = made(dataset), made(dataset)
    templates = [Epoch(loader).template for loader in (one, other, one, other)]
    assert templates[0] != templates[1] and templates[:2] == templates[2:]
    del one, other
    gc.collect()
    assert not any(map(psutil.pid_exists, templates))


@pytest.mark.long
def test_a_loader_that_is_given_another_dataset() -> None:
    one, other = Where(), Where()
    loader = made(one)
    first = psutil.Process(Epoch(loader).template)
    vars(loader)["dataset"] = other
    second = psutil.Process(Epoch(loader).template)
    assert first.pid != second.pid
    assert not first.is_running()
    loader.close()
    assert not second.is_running()


def test_a_worker_is_closed_only_when_no_other_thread_asks_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing asks all processes for their ends, in each thread that starts one."""
    loader = made(Counted(), persistent_workers=True)
    next(iter(loader))
    popen = loader._iterator._workers[0]._popen
    real = messages.receive_code
    closers: list[threading.Thread] = []

    def close() -> None:
        popen.wait()
        popen.close()

    def receive_code(channel: int) -> int | None:
        if not closers:
            closers.append(threading.Thread(target=close))
            closers[0].start()
            closers[0].join(0.2)
        return real(channel)

    monkeypatch.setattr(messages, "receive_code", receive_code)
    popen.kill()
    assert popen.wait() == -signal.SIGKILL
    closers[0].join()
    loader.close()


@pytest.mark.long
def test_two_threads_begin_epochs_at_once() -> None:
    dataset = Counted()
    loaders = [made(dataset) for _ in range(3)]
    found: list[Epoch] = []
    for _ in range(2):
        threads = [threading.Thread(target=lambda loader=loader: found.append(Epoch(loader))) for loader in loaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [epoch.indices for epoch in found] == [list(range(16))] * 6
    assert len({epoch.template for epoch in found}) == 1
    assert [epoch.values for epoch in found] == [{1}] * 6
    for loader in loaders:
        loader.close()


@pytest.mark.long
def test_what_has_threads_is_refused_to_each_loader_without_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each loader warns of it once."""
    dataset = Threads()
    for attempt in range(2):
        loader = made(dataset)
        with pytest.warns(RuntimeWarning, match="template=True has no effect on this loader") as caught:
            assert Epoch(loader).indices == Epoch(loader).indices == list(range(16))
        assert len([one for one in caught if "template" in str(one.message)]) == 1, attempt
        monkeypatch.setattr(template_module, "Running", None)


@pytest.mark.long
def test_a_forked_trainer_has_a_template_of_its_own() -> None:
    ran = run_script(
        """
import os, sys, torch, shmloader
class Where(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return index, os.getppid()
def epoch(loader):
    return {pid for _, parents in loader for pid in parents.tolist()}.pop()
def made():
    return shmloader.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context="spawn", template=True)
if __name__ == "__main__":
    dataset = Where()
    loader = made()
    first = epoch(loader)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        again = made()
        own = epoch(loader)
        print(own != first, epoch(again) == own)
        again.close(), loader.close()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print(epoch(loader) == first)
"""
    )
    assert (ran.status, ran.out) == (0, "True True\nTrue\n"), ran.out + ran.err


class Hangs(Where):
    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(1000)


@pytest.mark.long
def test_a_timeout_holds_for_the_template_too() -> None:
    """A spawned worker that hangs there would be reported by it."""
    dataset = Hangs()
    loader = made(dataset, timeout=0.5)
    with pytest.raises(RuntimeError, match=r"timed out after 0.5 seconds: the template process \(pid \d+\)"):
        iter(loader)
    loader.close()
