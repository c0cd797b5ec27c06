"""What other code has put in place of `__iter__` or `_get_iterator` is called: NOTE [ Replaced ], (b)."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
from conftest import assert_same, seed_all
from others_code import ALL_WORKERS, WORKERS, Proxy, assert_as_torch, epochs, torch_is_whole
from scripts import run_script
from torch.utils.data import DataLoader

import shmloader

__all__ = ["torch_is_whole"]
pytestmark = pytest.mark.filterwarnings("ignore:patch_torch.. does not reach")


class Doubled:
    """What a hook returns around an iterator."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return 2 * next(self.iterator)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.iterator._reset(loader, first_iter)


class Between(DataLoader):
    """A subclass of torch's, as a framework has it.  Ours is made of it: OfBetween."""


class OfBetween(Between, shmloader.DataLoader):
    pass


ITER, GET = DataLoader.__iter__, DataLoader._get_iterator


def doubling(method: Any) -> Any:
    @functools.wraps(method)
    def doubled(self: Any) -> Any:
        return Doubled(method(self))

    return doubled


def by_generator(self: Any) -> Any:
    for batch in ITER(self):
        yield 2 * batch


def double_result(wrapped: Any, arguments: Any, named: Any) -> Any:
    return Doubled(wrapped(*arguments, **named))


def on_class(name: str, by: Any) -> Any:
    return lambda patch, loader: patch.setattr(DataLoader, name, by)


def on_instance(patch: Any, loader: Any) -> None:
    get = loader._get_iterator
    loader._get_iterator = lambda: Doubled(get())


HOOKS: dict[str, Any] = {
    "__iter__": on_class("__iter__", doubling(ITER)),
    "generator": on_class("__iter__", by_generator),
    "_get_iterator": on_class("_get_iterator", doubling(GET)),
    "proxy": on_class("_get_iterator", Proxy(GET, double_result)),
    "partial": on_class("_get_iterator", functools.partialmethod(lambda self, get: Doubled(get(self)), GET)),
    "instance": on_instance,
    "bound": lambda patch, loader: setattr(loader, "_get_iterator", types.MethodType(doubling(GET), loader)),
}


def hooked(patch: pytest.MonkeyPatch, hook: Any, kind: Any, **options: Any) -> Any:
    loader = kind(torch.arange(12.0), batch_size=5, shuffle=True, **options)
    hook(patch, loader)
    return loader


def is_doubled(batches: list[Any]) -> bool:
    return all(torch.equal(torch.cat(epoch).sort()[0], 2 * torch.arange(12.0)) for epoch in batches)


@pytest.mark.parametrize("hook", HOOKS)
@WORKERS
def test_a_hook_is_called_and_comes_back(hook: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def make(kind: Any) -> Any:
        return hooked(monkeypatch, HOOKS[hook], kind, **options)

    if "generator" in hook and options.get("persistent_workers"):
        options = {**options, "persistent_workers": False}
    assert_as_torch(make, is_doubled)


@pytest.mark.parametrize("name", ["__iter__", "_get_iterator"])
@pytest.mark.parametrize("options", ALL_WORKERS, ids=str)
def test_a_hook_on_a_class_between(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Between, name, doubling({"__iter__": ITER, "_get_iterator": GET}[name]), raising=False)

    def make(kind: Any) -> Any:
        return (OfBetween if kind is shmloader.DataLoader else Between)(torch.arange(12.0), batch_size=5, **options)

    loader = assert_as_torch(make, is_doubled)
    if name == "_get_iterator":
        assert torch.cat([*loader._get_iterator()]).sum() == 2 * sum(range(12))
    loader.close()


def by_attribute(self: Any) -> Any:
    return Doubled(self.before_get_iterator())


class Own(DataLoader):
    def _get_iterator(self) -> Any:
        return super()._get_iterator()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("form", ["attribute", "own", "proxy", "default"])
def test_other_forms_of_it(form: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = {
        "attribute": by_attribute,
        "own": doubling(Own._get_iterator),
        "proxy": Proxy(GET, double_result),
        "default": lambda self, get=GET: Doubled(get(self)),
    }
    kind: Any = Own if form == "own" else Between
    monkeypatch.setattr(Between, "before_get_iterator", GET, raising=False)
    monkeypatch.setattr(kind, "_get_iterator", forms[form], raising=False)
    with shmloader.patch_torch(classes=[kind]):
        loader = kind(torch.arange(12.0), num_workers=workers)
    assert is_doubled(epochs(loader)) and loader.rides_ring is (workers > 0)


def test_both_hooks_on_all_classes_are_called_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (DataLoader, Between):
        monkeypatch.setattr(owner, "__iter__", doubling(owner.__iter__))
        monkeypatch.setattr(owner, "_get_iterator", doubling(owner._get_iterator), raising=False)
    for workers in (0, 1):
        for kind in (Between, OfBetween):
            assert sum(kind([1.0], num_workers=workers)) == 16


@pytest.mark.parametrize("hook", ["__iter__", "_get_iterator", "instance"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_state_counts_through_a_hook(hook: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        return hooked(monkeypatch, HOOKS[hook], shmloader.DataLoader, **options)

    seed_all()
    loader = make()
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    rest = list(batches)
    assert state["batches"] == 1 and sorted(torch.cat([first, *rest]).tolist()) == [2.0 * k for k in range(12)]
    seed_all(7)
    list(loader)
    loader.load_state_dict(state)
    assert_same(list(loader), rest)
    resumed = make()
    resumed.load_state_dict(state)
    assert_same(list(resumed), rest)
    resumed.close()
    loader.close()


COUNTED = """
import torch, shmloader
from torch.utils.data import DataLoader

class Calls(shmloader.DataLoader):
    def __iter__(self):
        return DataLoader.__iter__(self)

loader = Calls(range(6))
stock = DataLoader._get_iterator
DataLoader._get_iterator = lambda self: map(lambda batch: batch, stock(self))
batches = iter(loader)
next(batches), next(batches)
print(loader.state_dict()["batches"])
"""


def test_a_state_counts_in_a_class_that_calls_torchs_iter_of_a_process_without_other_loaders() -> None:
    """Our own `__iter__` does not run, which looks for hooks."""
    ran = run_script(COUNTED)
    assert (ran.out.strip(), ran.status) == ("2", 0), ran.err


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_on_a_device_go_through_a_hook(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"num_workers": workers, "device": "cpu", "on_device": lambda batch: batch + 1}
    loader = hooked(monkeypatch, HOOKS["_get_iterator"], shmloader.DataLoader, **options)
    assert set(torch.cat([*loader]).tolist()) == (
        {2.0 * k + 2 for k in range(12)} if workers else {2.0 * k + 1 for k in range(12)}
    )


def test_patched_loaders_have_the_hook_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", doubling(GET))
    with shmloader.patch_torch(classes=[Between]):
        for kind in (DataLoader, Between):
            loader: Any = kind(torch.arange(12.0), num_workers=1)
            assert is_doubled(epochs(loader)) and loader.rides_ring


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["__iter__", "_get_iterator"])
def test_a_hook_on_our_own_class(name: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(kind: Any) -> Any:
        monkeypatch.setattr(kind, name, doubling(getattr(kind, name)))
        return kind(torch.arange(12.0), num_workers=workers)

    ours = make(shmloader.DataLoader)  # first, because ours inherits a hook on torch's
    assert is_doubled(epochs(ours)) and ours.rides_ring is (workers > 0)
    assert_same(epochs(ours), epochs(make(DataLoader)))


def test_a_hook_that_makes_its_own_iterator_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "_get_iterator", lambda self: iter([1, 2]))
    loader = shmloader.DataLoader([0], num_workers=1)
    with pytest.warns(RuntimeWarning, match=r"replaced DataLoader\._get_iterator \(.*test_replaced_[a-z]+\.py:\d+\)"):
        assert list(loader) == [1, 2]
    assert not loader.rides_ring
    asks = shmloader.DataLoader([0], num_workers=1, on_worker_death="respawn")
    with pytest.raises(RuntimeError, match="only the ring can honour on_worker_death='respawn'"):
        iter(asks)
    monkeypatch.undo()
    assert [batch.tolist() for batch in loader] == [[0]] and loader.rides_ring
