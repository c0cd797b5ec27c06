"""What others replace in torch's loader, each so that a program sees it: fetchers, methods of the loader and of its
iterators, as packing, tracing and profiling do.  Each is put back when its `with` ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import _utils
from torch.utils.data import dataloader as torchs

Wrap = Callable[[Callable[..., Any]], Any]


class Tagged:
    """An iterator that marks what it gives, and is like the one inside in everything else."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Tagged:
        return self

    def __next__(self) -> Any:
        return "hooked", next(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class _Reversing:
    """A sampler's iterator that turns each list of indices round."""

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> _Reversing:
        return self

    def __next__(self) -> Any:
        return _turned(next(self._indices))


def _turned(index: Any) -> Any:
    return index[::-1] if isinstance(index, list) else index


def _tags(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)  # which copies __module__, as most wrappers do
    def hooked(*arguments: Any, **options: Any) -> Any:
        return "hooked", function(*arguments, **options)

    return hooked


def _tags_by_partial(function: Callable[..., Any]) -> Any:
    return functools.partialmethod(_tagged, function)  # it has no code of its own


def _tagged(self: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    return "hooked", function(self, *arguments)


def _tags_iterator(function: Callable[..., Any]) -> Any:
    def hooked(self: Any) -> Any:
        return Tagged(function(self))

    return hooked


def _turns(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def hooked(self: Any) -> Any:
        return _turned(function(self))

    return hooked


def _turns_sampler(function: Callable[..., Any]) -> Any:
    def hooked(self: Any, *arguments: Any, **options: Any) -> Any:
        result = function(self, *arguments, **options)
        if type(self._sampler_iter) is not _Reversing:
            self._sampler_iter = _Reversing(self._sampler_iter)
        return result

    return hooked


def _tags_collate(function: Callable[..., Any]) -> Any:
    def hooked(self: Any, loader: Any) -> None:
        function(self, loader)
        self._collate_fn = _tags(self._collate_fn)

    return hooked


def _fetches_tagged(kind: Any) -> Any:
    return type(kind.__name__, (kind,), {"fetch": _tags(kind.fetch), "__module__": kind.__module__})


def _makes_fetcher(function: Callable[..., Any]) -> Any:
    def hooked(kind: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> Any:
        return function(kind, dataset, auto_collation, _tags(collate_fn), drop_last)

    return staticmethod(hooked)


_FETCH = _utils.fetch
_MAP, _STREAM = _FETCH._MapDatasetFetcher, _FETCH._IterableDatasetFetcher
_ANY, _MANY = torchs._BaseDataLoaderIter, torchs._MultiProcessingDataLoaderIter
# The name, as a warning has it: what is replaced where, and by what.
FETCHERS: dict[str, list[tuple[Any, str, Wrap]]] = {
    "fetch": [(_MAP, "fetch", _tags), (_STREAM, "fetch", _tags)],
    "_MapDatasetFetcher": [(_FETCH, each.__name__, _fetches_tagged) for each in (_MAP, _STREAM)],
    "create_fetcher": [(torchs._DatasetKind, "create_fetcher", _makes_fetcher)],
}
LOADER: dict[str, list[tuple[Any, str, Wrap]]] = {
    "__iter__": [(torchs.DataLoader, "__iter__", _tags_iterator)],
    "_get_iterator": [(torchs.DataLoader, "_get_iterator", _tags_iterator)],
}
ITERATORS: dict[str, list[tuple[Any, str, Wrap]]] = {
    "__init__": [(_ANY, "__init__", _tags_collate)],
    "__next__": [(_ANY, "__next__", _tags)],
    "_next_data": [(each, "_next_data", _tags) for each in (_MANY, torchs._SingleProcessDataLoaderIter)],
    "_next_index": [(_ANY, "_next_index", _turns)],
    "_reset": [(_ANY, "_reset", _turns_sampler)],
    "_process_data": [(_MANY, "_process_data", _tags_by_partial)],
    "_try_put_index": [(_MANY, "_try_put_index", _turns_sampler)],
}
HOOKS = {**FETCHERS, **LOADER, **ITERATORS}


@contextlib.contextmanager
def installed(name: str) -> Iterator[None]:
    """Replace what the hook of this name replaces."""
    before = [(where, what, vars(where)[what]) for where, what, _ in HOOKS[name]]
    try:
        for where, what, wrap in HOOKS[name]:
            setattr(where, what, wrap(getattr(where, what)))
        yield
    finally:
        for where, what, found in before:
            setattr(where, what, found)


def library_of(iterator: Any) -> str:
    """The package of the iterator that iter() has returned, under what was wrapped around it: "torch", "shmloader"."""
    while type(iterator) is Tagged:
        iterator = iterator.inner
    return type(iterator).__module__.partition(".")[0]
