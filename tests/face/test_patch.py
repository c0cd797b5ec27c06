"""patch_torch(): whoever builds torch's loader gets ours, and everything is torch's again afterwards."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
import types
from typing import Any

import pytest
import torch
import torch.utils.data
from conftest import Augmented, Items, assert_same, iterate, raised, seed_all
from scripts import run_script
from torch.utils.data import DataLoader

import shmloader
from shmloader.trainer.iterator import RingIterator

TORCH_INIT = vars(DataLoader)["__init__"]


class Sub(DataLoader):
    """A subclass that was defined before."""


class Holder:
    of_a_class = DataLoader


def of_a_default(*arguments: Any, kind: Any = DataLoader, **options: Any) -> Any:
    return kind(*arguments, **options)


def module_that_imports_it() -> types.ModuleType:
    module = types.ModuleType("imports_a_loader")
    exec("from torch.utils.data import *", vars(module))
    return module


BUILDERS = {
    "torch.utils.data": lambda *a, **k: torch.utils.data.DataLoader(*a, **k),
    "imported": lambda *a, **k: DataLoader(*a, **k),
    "in a module imported later": lambda *a, **k: module_that_imports_it().DataLoader(*a, **k),
    "class attribute": lambda *a, **k: Holder.of_a_class(*a, **k),
    "default argument": of_a_default,
    "partial": functools.partial(DataLoader),
    "subscripted": lambda *a, **k: DataLoader[int](*a, **k),
}


@pytest.fixture(autouse=True)
def _torch_is_whole() -> Any:
    yield
    assert vars(DataLoader)["__init__"] is TORCH_INIT and "__new__" not in vars(DataLoader)
    assert type(DataLoader([1])) is DataLoader


@pytest.mark.parametrize("name", BUILDERS)
def test_whoever_builds_it(name: str) -> None:
    build = BUILDERS[name]
    assert type(build(Augmented())) is DataLoader
    with shmloader.patch_torch():
        assert type(build(Augmented())) is shmloader.DataLoader
        assert type(build(dataset=Augmented(), spare_slots=3)) is shmloader.DataLoader
    assert type(build(Augmented())) is DataLoader


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_same_batches_through_the_ring(context: str) -> None:
    def epoch(context: str) -> Any:
        seed_all()
        iterator = iter(
            DataLoader(Augmented(), 4, True, num_workers=2, drop_last=True, multiprocessing_context=context)
        )
        return type(iterator), list(iterator)

    torchs, theirs = epoch("fork")
    with shmloader.patch_torch():
        kind, ours = epoch(context)
    assert issubclass(kind, RingIterator) and not issubclass(torchs, RingIterator)
    assert_same(ours, theirs)


def test_what_stays_torchs_and_isinstance_means_what_it_meant() -> None:
    before, sub = DataLoader(Augmented(), num_workers=1), Sub(Augmented(), num_workers=1)
    with shmloader.patch_torch():

        class Later(DataLoader):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)

        for loader in before, sub, Sub(Augmented(), num_workers=1), Later(Augmented(), num_workers=1):
            assert isinstance(loader, torch.utils.data.DataLoader) and not isinstance(loader, shmloader.DataLoader)
            assert type(iter(loader)) is torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        assert type(shmloader.DataLoader([1])) is shmloader.DataLoader
        assert isinstance(DataLoader([1]), torch.utils.data.DataLoader) and issubclass(Sub, DataLoader)
        assert torch.utils.data.DataLoader is DataLoader and not isinstance([1], DataLoader)


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_pickles(protocol: int) -> None:
    stock = DataLoader(Augmented(), batch_size=3)
    with shmloader.patch_torch():
        assert pickle.loads(pickle.dumps(DataLoader, protocol)) is DataLoader
        assert type(pickle.loads(pickle.dumps(stock, protocol))) is DataLoader
        assert type(copy.copy(stock)) is type(copy.deepcopy(stock)) is DataLoader
        ours = pickle.dumps(DataLoader(Augmented(), batch_size=3, num_workers=1), protocol)
        assert type(pickle.loads(ours)) is shmloader.DataLoader
    loader = pickle.loads(ours)
    assert type(loader) is shmloader.DataLoader and len(iterate(loader)) == len(stock)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((), {}), (([1],), {"no_option": 1}), (([1],), {"num_workers": -1}), (([1],), {"sampler": [1], "shuffle": True})],
)
def test_the_same_errors(arguments: Any, options: Any) -> None:
    def error() -> Any:
        with pytest.raises(Exception) as caught:
            DataLoader(*arguments, **options)
        return raised(caught.value)

    theirs = error()
    with shmloader.patch_torch():
        assert_same(error(), theirs)


def test_the_signature_is_torchs() -> None:
    theirs = inspect.signature(DataLoader), inspect.signature(DataLoader.__init__), DataLoader.__doc__
    with shmloader.patch_torch():
        assert (inspect.signature(DataLoader), inspect.signature(DataLoader.__init__), DataLoader.__doc__) == theirs


def test_who_wraps_the_constructor_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch that is undone under another wrapper has no effect, also after that wrapper restores what it found."""
    patch = shmloader.patch_torch()
    with monkeypatch.context() as theirs:
        found = DataLoader.__init__
        theirs.setattr(DataLoader, "__init__", lambda self, *a, **k: found(self, *a, **k))
        assert type(DataLoader([1])) is shmloader.DataLoader
        patch.undo()
        assert type(DataLoader([1])) is DataLoader
        with shmloader.patch_torch():
            assert type(DataLoader([1])) is shmloader.DataLoader
        assert type(DataLoader([1])) is DataLoader
    assert type(DataLoader([1])) is DataLoader
    DataLoader.__init__ = TORCH_INIT


def test_no_module_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was looked up")

    monkeypatch.setitem(sys.modules, "a_lazy_module", Lazy("a_lazy_module"))
    with shmloader.patch_torch():
        assert type(DataLoader([1])) is shmloader.DataLoader


def test_in_a_worker() -> None:
    """A forked worker is patched as its parent is."""
    with shmloader.patch_torch():
        (batch,) = DataLoader(Items([lambda: type(DataLoader([1])).__module__]), num_workers=1)
    assert batch == ["shmloader.dataloader"]


def test_for_a_whole_script() -> None:
    """Never undone, and its loader never exhausted."""
    ran = run_script(
        """
        import shmloader
        shmloader.patch_torch()
        from torch.utils.data import DataLoader
        loader = DataLoader(range(10), num_workers=2, persistent_workers=True)
        print(type(loader).__module__, next(iter(loader)).item())
        """
    )
    assert (ran.status, ran.out, ran.err) == (0, "shmloader.dataloader 0\n", "")
