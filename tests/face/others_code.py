"""What the tests of what other code replaces in torch's loader have in common."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import BOTH, assert_same, seed_all

from shmloader.private import replaced
from shmloader.system import user_line

PERSISTENT = {"num_workers": 2, "persistent_workers": True}
ALL_WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}, PERSISTENT]
WORKERS = pytest.mark.parametrize("options", [{}, {"num_workers": 2}], ids=str)


@pytest.fixture(autouse=True)
def torch_is_whole() -> Iterator[None]:
    """Without `monkeypatch`, so that this one ends after it."""
    user_line._met.clear()
    yield
    assert replaced.iterators() is None and not any(map(replaced.is_replaced, ("__iter__", "_get_iterator")))
    assert replaced.fetcher(False) is None and replaced.fetcher(True) is None


def epochs(loader: Any, count: int = 2) -> list[Any]:
    seed_all()
    return [list(loader) for _ in range(count)]


def assert_as_torch(make: Callable[[Any], Any], effect: Callable[[list[Any]], bool]) -> Any:
    """Both loaders give the same, and show the effect; ours rides the ring if it has workers.  Returns ours."""
    theirs, ours = (make(kind) for kind in BOTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = epochs(ours)
    assert_same(batches, epochs(theirs))
    assert effect(batches)
    assert ours.rides_ring is (ours.num_workers > 0)
    ours.close()
    return ours


class Proxy:
    """As wrapt's: it seems to be what it wraps, its code included."""

    def __init__(self, wrapped: Any, wrapper: Any) -> None:
        self.__wrapped__, self._self_wrapper = wrapped, wrapper

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    @property
    def __class__(self) -> Any:
        return types.FunctionType

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise AttributeError

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return functools.partial(self, instance)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, arguments, named)


def negate_result(wrapped: Any, arguments: Any, named: Any) -> Any:
    return -wrapped(*arguments, **named)
