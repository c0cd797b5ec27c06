"""A dataset whose class overrides `__getitem__`, but has the `__getitems__` of another class."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, StackDataset, Subset, TensorDataset

import shmloader
from shmloader.system import user_line

LENGTH = 6


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_line, "_met", set())


class Rows(torch.utils.data.Dataset):
    """Has both methods."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return list(indices)


class Bypassed(Rows):
    def __getitem__(self, index: int) -> int:
        return 100 + index


class Passes:
    """A wrapper that passes everything else on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return 100 + int(self.inner[index])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class Pairs(StackDataset):
    def __getitem__(self, index: int) -> Any:
        return 100


@pytest.mark.parametrize(
    ("dataset", "owner"),
    [
        (Bypassed(), "Rows"),
        (Passes(Rows()), "Rows"),
        (Subset(Bypassed(), range(LENGTH)), "Rows"),
        (Pairs(Rows(), Rows()), "StackDataset"),
    ],
    ids=["a subclass", "a wrapper", "in a Subset", "a StackDataset"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bypassed_getitem_is_named_once(dataset: Any, owner: str, workers: int) -> None:
    loader = shmloader.DataLoader(dataset, batch_size=3, num_workers=workers)
    kind = type(getattr(dataset, "dataset", dataset)).__name__
    with pytest.warns(RuntimeWarning, match=f"^{kind}.__getitem__ is not called, .* of {owner}. ") as seen:
        got = list(loader)
    assert [warning.filename for warning in seen if "is not called" in str(warning.message)] == [__file__]
    theirs = list(torch.utils.data.DataLoader(dataset, batch_size=3))
    assert str(got) == str(theirs) and "100" not in str(got)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


class AsksItself(Rows):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class AsksByMethod(Rows):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return self.all_of(indices)

    def all_of(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class AsksAbove(AsksItself):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return super().__getitems__(indices)


class AsksAnotherWay(Rows):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return made_of(self, indices)


def decorated(method: Any) -> Any:
    @functools.wraps(method)
    def call(obj: Any, *arguments: Any) -> Any:
        return method(obj, *arguments)

    return call


class AsksDecorated(Rows):
    @decorated
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class AsksByProperty(Rows):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self.get(index) for index in indices]

    @property
    def get(self) -> Any:
        return self.__getitem__


class AsksByAttribute(Rows):
    def __init__(self) -> None:
        self.get = self.__getitem__

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self.get(index) for index in indices]


INDIRECT = [AsksDecorated, AsksByProperty, AsksByAttribute]


def made_of(dataset: Any, indices: list[int]) -> list[int]:
    return [dataset[index] for index in indices]


class Alias(Rows):
    def __getitem__(self, index: Any) -> Any:
        return index

    __getitems__ = __getitem__


@pytest.mark.parametrize("base", [AsksItself, AsksByMethod, AsksAbove, AsksAnotherWay, *INDIRECT])
def test_a_getitems_that_calls_getitem_bypasses_nothing(base: Any) -> None:
    class Own(base):
        def __getitem__(self, index: int) -> int:
            return 100 + index

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (batch,) = shmloader.DataLoader(Own(), batch_size=LENGTH)
    assert batch.tolist() == list(range(100, 100 + LENGTH))


class Both(Bypassed):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class OwnAlias(Alias):
    def __getitem__(self, index: Any) -> Any:
        return index


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(LENGTH))

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Rows(), {}),
        (Both(), {}),
        (OwnAlias(), {}),
        (Bypassed(), {"batch_size": None}),
        (ConcatDataset([Bypassed()]), {}),
        (Passes(TensorDataset(torch.arange(LENGTH))), {"batch_size": None, "sampler": []}),
        (TensorDataset(torch.arange(LENGTH)), {}),
        (Subset(TensorDataset(torch.arange(LENGTH)), [0]), {}),
        (StackDataset(Rows(), Rows()), {}),
        (list(range(LENGTH)), {}),
        (Stream(), {}),
    ],
)
def test_others_are_not_warned_of(dataset: Any, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(shmloader.DataLoader(dataset, **options))
