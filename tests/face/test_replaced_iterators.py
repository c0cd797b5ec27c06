"""torch's iterator serves if other code has changed how it works, with a warning: NOTE [ Replaced ], (c)."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import pytest
import torch
from conftest import assert_same, seed_all
from others_code import Proxy, epochs, negate_result, torch_is_whole
from torch.utils.data import DataLoader, _utils
from torch.utils.data import dataloader as torchs

import shmloader
from shmloader import replaced

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
@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.long)])
def test_torchs_iterator_serves(kind: Any, name: str, persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    options = {"batch_size": 5, "num_workers": 2, "persistent_workers": persistent}
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


def test_code_that_was_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_index(self: Any) -> Any:
        return next(self._sampler_iter)

    loader = shmloader.DataLoader([1], num_workers=1)
    monkeypatch.setattr(torchs._BaseDataLoaderIter._next_index, "__code__", next_index.__code__)
    assert "_BaseDataLoaderIter._next_index" in str(loader.why_not_ring())


def test_the_variable_says_that_it_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    for name in ("_reset", "__next__"):
        method = getattr(torchs._BaseDataLoaderIter, name)
        monkeypatch.setattr(torchs._BaseDataLoaderIter, name, counting(method, calls))
    loader = shmloader.DataLoader(torch.arange(3.0), num_workers=1)
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
    with shmloader.patch_torch():
        assert kind.__init__.__code__.co_filename.endswith("shmloader/_torch.py")
        assert shmloader.DataLoader([1], num_workers=1).rides_ring
        with monkeypatch.context() as patch:  # after our watch
            patch.setattr(kind, "__init__", counting(kind.__init__, []))
            assert not shmloader.DataLoader([1], num_workers=1).rides_ring
    monkeypatch.setattr(kind, "__init__", counting(kind.__init__, []))  # before it
    with shmloader.patch_torch():
        assert kind.__init__.__code__.co_filename.endswith("shmloader/_torch.py")
        assert not shmloader.DataLoader([1], num_workers=1).rides_ring


def test_a_torch_that_was_compiled_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file in its code is another one than `__file__`."""
    replaced._file.cache_clear()
    try:
        for function in {id(each): each for each in replaced._functions(torchs)}.values():
            if function.__module__ == torchs.__name__:
                monkeypatch.setattr(
                    function, "__code__", function.__code__.replace(co_filename="/build/d/dataloader.py")
                )
        for module, name in ((_utils.fetch, "fetch.py"), (_utils.worker, "worker.py")):
            for function in {id(each): each for each in replaced._functions(module)}.values():
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


@pytest.mark.off_the_ring
@pytest.mark.filterwarnings("ignore:.*does not ride:RuntimeWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_recovers_by_torchs_iterators(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recovering(monkeypatch)
    with shmloader.patch_torch(classes=[Saveable]):
        loader: Any = Saveable(torch.arange(8.0), batch_size=2, num_workers=workers)
    loader.skip_to = 3
    assert [batch.tolist() for batch in loader] == [[6, 7]]
    assert len(list(loader)) == 4 and loader.skip_to is None
    assert isinstance(iter(shmloader.DataLoader([1], num_workers=1)), torchs._MultiProcessingDataLoaderIter)


def test_the_patch_names_what_lets_such_a_loader_ride(monkeypatch: pytest.MonkeyPatch) -> None:
    recovering(monkeypatch)
    monkeypatch.setattr("shmloader.patch._warned", set())
    with (
        pytest.warns(RuntimeWarning, match=r"does not reach test_replaced_iterators\.Saveable") as caught,
        shmloader.patch_torch(),
    ):
        pass
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
