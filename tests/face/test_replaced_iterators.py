"""Other code's `__iter__` and `_get_iterator` are called, and with its iterators torch's serves: NOTE [ Replaced ]."""

from __future__ import annotations

import functools
import re
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same, seed_all
from others_code import ALL_WORKERS, WORKERS, Proxy, assert_as_torch, epochs, negate_result, torch_is_whole
from torch.utils.data import DataLoader, _utils
from torch.utils.data import dataloader as torchs

import shmloader
from shmloader.checks import read_elsewhere
from shmloader.private import of_torch, replaced

__all__ = ["torch_is_whole"]
pytestmark = pytest.mark.filterwarnings("ignore:patch_torch.. does not reach")


def counting(method: Any, calls: list[Any]) -> Any:
    @functools.wraps(method)
    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(type(self))
        return method(self, *arguments, **named)

    return counted


OF_ITERATORS = [
    (kind, name)
    for kind in (torchs._BaseDataLoaderIter, torchs._MultiProcessingDataLoaderIter)
    for name in replaced._METHODS
    if name in vars(kind) and (kind, name) != (torchs._BaseDataLoaderIter, "_next_data")
]


def test_all_methods_of_the_list_exist() -> None:
    assert {name for _, name in OF_ITERATORS} == set(replaced._METHODS)


@pytest.mark.off_the_ring
@pytest.mark.parametrize(("kind", "name"), OF_ITERATORS)
def test_torchs_iterator_serves(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    options = {"batch_size": 5, "num_workers": 2, "persistent_workers": name == "_reset"}
    theirs = epochs(DataLoader(torch.arange(12.0), **options))
    loader = shmloader.DataLoader(torch.arange(12.0), **options)
    assert loader.rides_ring
    monkeypatch.setattr(kind, name, counting(getattr(kind, name), calls))
    what = f"{kind.__name__}.{name}"
    says = rf"DataLoader does not ride .*replaced {what} of torch's iterator \(.*test_replaced_[a-z]+\.py:\d+\).*"
    seed_all()
    with pytest.warns(RuntimeWarning) as caught:
        batches = [list(loader), list(loader)]
    (warning,) = caught
    assert re.search(f"{says}{replaced.IGNORE}={what} ", str(warning.message)) and warning.filename == __file__
    assert set(calls) == {torchs._MultiProcessingDataLoaderIter}
    assert_same(batches, theirs)
    assert not loader.rides_ring and what in loader.why_not_ring()
    with pytest.raises(RuntimeError, match=f"only the ring can honour schedule='steal'.*{what}"):
        shmloader.DataLoader(torch.arange(12.0), num_workers=1, schedule="steal")
    loader.close()
    monkeypatch.undo()
    assert loader.rides_ring


class Other(torchs._MultiProcessingDataLoaderIter):
    def _next_data(self) -> Any:
        return -super()._next_data()


@pytest.mark.parametrize(
    ("owner", "name", "by", "what"),
    [
        (torchs, "_MultiProcessingDataLoaderIter", Other, "Other._next_data"),
        (torchs, "_MultiProcessingDataLoaderIter", lambda loader: Other(loader), "_MultiProcessingDataLoaderIter"),
        (
            torchs._MultiProcessingDataLoaderIter,
            "__next__",
            Other._next_data,
            "_MultiProcessingDataLoaderIter.__next__",
        ),
        (torchs._BaseDataLoaderIter, "__next__", functools.partial(next), "_BaseDataLoaderIter.__next__"),
        (torchs._BaseDataLoaderIter, "__next__", len, "_BaseDataLoaderIter.__next__"),
        (
            torchs._BaseDataLoaderIter,
            "__next__",
            Proxy(torchs._BaseDataLoaderIter.__next__, negate_result),
            "_BaseDataLoaderIter.__next__",
        ),
        (
            _utils.worker,
            "_worker_loop",
            functools.wraps(_utils.worker._worker_loop)(lambda *arguments: None),
            "_worker_loop",
        ),
    ],
)
def test_other_forms_of_that(owner: Any, name: str, by: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = shmloader.DataLoader([1], num_workers=1)
    monkeypatch.setattr(owner, name, by, raising=False)
    assert f"replaced {what} of torch's iterator (" in str(loader.why_not_ring())
    assert (
        shmloader.DataLoader([1]).why_not_ring()
        == "num_workers is 0, so this process makes the batches and needs no ring"
    )


def test_the_variable_says_that_it_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in ("_reset", "__next__"):
        method = getattr(torchs._BaseDataLoaderIter, name)
        monkeypatch.setattr(torchs._BaseDataLoaderIter, name, counting(method, calls))
    loader = shmloader.DataLoader(torch.arange(3.0), num_workers=1)
    setting = re.search(rf"{replaced.IGNORE}=(\S+)", str(loader.why_not_ring()))
    assert setting is not None
    first, second = setting[1].split(",")
    monkeypatch.setenv(replaced.IGNORE, first)
    why = str(loader.why_not_ring())
    assert f"replaced {second} of" in why and setting[0] in why
    monkeypatch.setenv(replaced.IGNORE, setting[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loader.rides_ring and [batch.item() for batch in loader] == [0, 1, 2]
    assert not calls


def test_our_own_watch_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torchs._MultiProcessingDataLoaderIter
    read_elsewhere._notes._entries.clear()  # what another test's loaders read keeps torch's class watched
    read_elsewhere._watch_while_needed()
    of_torch._unwatched.clear()  # a test that replaced __init__ has put back what was there before our watch
    with shmloader.patch_torch():
        assert kind.__init__.__code__.co_filename.endswith("shmloader/private/of_torch.py")
        assert shmloader.DataLoader([1], num_workers=1).rides_ring
        with monkeypatch.context() as patch:  # after our watch
            patch.setattr(kind, "__init__", counting(kind.__init__, []))
            assert not shmloader.DataLoader([1], num_workers=1).rides_ring
    monkeypatch.setattr(kind, "__init__", counting(kind.__init__, []))  # before it
    with shmloader.patch_torch():
        assert kind.__init__.__code__.co_filename.endswith("shmloader/private/of_torch.py")
        assert not shmloader.DataLoader([1], num_workers=1).rides_ring


def functions_of(module: Any) -> Iterator[types.FunctionType]:
    """A module's functions, and those of its classes."""
    for found in list(vars(module).values()):
        for each in [found, *(vars(found).values() if isinstance(found, type) else ())]:
            each = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
            if type(each) is types.FunctionType:
                yield each


def test_a_torch_that_was_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file in its code is another one than `__file__`."""
    replaced._file.cache_clear()
    try:
        for function in {id(each): each for each in functions_of(torchs)}.values():
            if function.__module__ == torchs.__name__:
                monkeypatch.setattr(
                    function, "__code__", function.__code__.replace(co_filename="/build/d/dataloader.py")
                )
        for module, name in ((_utils.fetch, "fetch.py"), (_utils.worker, "worker.py")):
            for function in {id(each): each for each in functions_of(module)}.values():
                if function.__module__ == module.__name__:
                    code = function.__code__.replace(co_filename=f"/build/d/_utils/{name}")
                    monkeypatch.setattr(function, "__code__", code)
        assert replaced.fetcher(False) is replaced.fetcher(True) is None
        monkeypatch.setattr(torchs._BaseDataLoaderIter, "_reset", counting(torchs._BaseDataLoaderIter._reset, []))
        why = str(replaced.iterators())
        assert "replaced _BaseDataLoaderIter._reset of" in why
        assert replaced.iterators() is None or "_next" not in why
    finally:
        monkeypatch.undo()
        replaced._file.cache_clear()


class Saveable(DataLoader):
    """As SpeechBrain's SaveableDataLoader: what it has put into torch's iterators skips batches after a checkpoint."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.skip_to: int | None = None


def recovering(patch: pytest.MonkeyPatch) -> None:
    """As the import of SpeechBrain's module."""
    init = torchs._BaseDataLoaderIter.__init__

    def new_init(self: Any, loader: Any, *arguments: Any, **named: Any) -> None:
        init(self, loader, *arguments, **named)
        for _ in range(getattr(loader, "skip_to", None) or 0):
            next(self._sampler_iter)
            self._num_yielded += 1
        loader.skip_to = None

    def new_reset(self: Any, loader: Any, first_iter: bool = False, *arguments: Any, **named: Any) -> None:
        if not first_iter:
            self._sampler_iter, self._num_yielded = iter(self._index_sampler), 0
            self._IterableDataset_len_called = loader._IterableDataset_len_called

    patch.setattr(torchs._BaseDataLoaderIter, "__init__", functools.update_wrapper(new_init, init))
    patch.setattr(torchs._BaseDataLoaderIter, "_reset", new_reset)


def test_the_patch_names_what_lets_such_a_loader_ride(monkeypatch: pytest.MonkeyPatch) -> None:
    recovering(monkeypatch)
    monkeypatch.setattr("shmloader.patch._warned", set())
    with (
        pytest.warns(RuntimeWarning, match=r"does not reach test_replaced_iterators\.Saveable") as caught,
        shmloader.patch_torch(),
    ):
        list(Saveable(torch.arange(8.0), num_workers=1))
    (text,) = [str(each.message) for each in caught if "Saveable" in str(each.message)]
    says = rf"If you name it, torch's iterator still serves it: .*__init__.*{replaced.IGNORE}=(\S+) in the environment"
    setting = re.search(rf"{says}\. Then give classes=\[Saveable\]", text)
    assert setting is not None
    monkeypatch.setenv(replaced.IGNORE, setting[1])
    with shmloader.patch_torch(classes=[Saveable]):
        loader: Any = Saveable(torch.arange(8.0), batch_size=2, num_workers=1)
    batches = iter(loader)
    next(batches)
    resumed = shmloader.DataLoader(torch.arange(8.0), batch_size=2, num_workers=1)
    resumed.load_state_dict(loader.state_dict())
    assert loader.rides_ring and torch.cat(list(batches)).tolist() == torch.cat(list(resumed)).tolist() == [
        *range(2, 8)
    ]


# -------------------------------------------------------------------------------------------- hooks that make iterators


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


class BehindOurs(shmloader.DataLoader, Between):
    pass


@pytest.mark.parametrize("options", ALL_WORKERS, ids=str)
def test_an_iter_of_a_class_behind_ours(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Between, "__iter__", doubling(ITER), raising=False)

    def make(kind: Any) -> Any:
        return (BehindOurs if kind is shmloader.DataLoader else Between)(torch.arange(12.0), batch_size=5, **options)

    assert_as_torch(make, is_doubled)


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
