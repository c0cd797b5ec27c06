"""Which streams are asked for a state, and the warning where that takes a large part of a worker's time."""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import iterate, label
from test_resume import through_json
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import shmloader
from shmloader.worker import state_costs

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
    pytest.mark.filterwarnings("ignore:the dataset .* has no state_dict"),
]
LENGTH = 10
OPTIONS: list[Any] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "device": "cpu", "on_device": dict},
    pytest.param({"num_workers": 1, "multiprocessing_context": "forkserver"}, marks=pytest.mark.long),
]


class Module(torch.nn.Module, IterableDataset[Any]):
    """nn.Module's own state_dict() does not say where it is."""

    def __iter__(self) -> Iterator[dict[str, int]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter([{"i": number} for number in range(first, LENGTH, step)])

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name != "state_dict":
            return found
        return Shouts(found) if type(self) is Module else found


class Shouts:
    """A method that must not be called."""

    def __init__(self, method: Any) -> None:
        self.__func__ = method.__func__

    def __call__(self) -> Any:
        raise AssertionError("a module was asked for its parameters")


class IteratorIsModule(IterableDataset[Any]):
    """Its iterator is a module."""

    def __iter__(self) -> Any:
        return Reader(iter(Module()))


class Reader(torch.nn.Module):
    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.numbers = numbers

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.numbers)


class ModuleWithState(Module):
    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, int]]:
        for number in list(super().__iter__())[self.at :]:
            self.at += 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        self.at = state["at"]


def numbers(batches: Any) -> list[list[int]]:
    return [batch["i"].tolist() for batch in itertools.islice(batches, 50)]


@pytest.mark.parametrize("options", OPTIONS, ids=label)
@pytest.mark.parametrize("kind", [Module, IteratorIsModule, ModuleWithState])
def test_a_module_as_stream(kind: Any, options: dict[str, Any]) -> None:
    wanted = numbers(DataLoader(kind(), 2, num_workers=options["num_workers"]))
    for after in 0, 1, 3:
        with shmloader.DataLoader(kind(), 2, **options) as first:
            batches = iter(first)
            got = numbers(itertools.islice(batches, after))
            state = through_json(first.state_dict())
            if after:
                has_state = [stream["state"] is not None for stream in state["streams"][0] if stream["batches"]]
                assert set(has_state) == {kind is ModuleWithState}
        with shmloader.DataLoader(kind(), 2, **options) as again:
            again.load_state_dict(state)
            assert got + numbers(iterate(again)) == wanted
            assert numbers(iterate(again)) == wanted


class Slow(ModuleWithState):
    """Its state takes longer than its samples."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        time.sleep(0.02)
        return super().state_dict()


def print_warnings(worker: int) -> None:
    """In a worker that has inherited pytest's list of warnings."""

    def show(message: Any, category: Any, filename: str, line: int, file: Any = None, text: str | None = None) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, line, text))

    warnings.showwarning = show
    warnings.simplefilter("always")


def warned(text: str) -> list[str]:
    return [line for line in text.splitlines() if "RuntimeWarning: the state of the stream" in line]


@pytest.mark.parametrize("options", OPTIONS[1:4], ids=label)
def test_one_warning_where_the_state_takes_long(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state_costs, "LEAST", 0)
    with shmloader.DataLoader(Slow(), 1, worker_init_fn=print_warnings, **options) as loader:
        for _ in range(2):
            iterate(loader)
    (line,) = warned(capfd.readouterr().err)
    code = Slow.state_dict.__code__
    assert line.startswith(f"{code.co_filename}:{code.co_firstlineno}: ")
    assert "the state of the stream Slow takes" in line and "% of the time of worker 0" in line


@pytest.mark.parametrize("kind", [ModuleWithState, Module])
def test_no_warning_where_it_is_cheap(kind: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with shmloader.DataLoader(kind(), 1, worker_init_fn=print_warnings, num_workers=2) as loader:
        iterate(loader)
    assert not warned(capfd.readouterr().err)
