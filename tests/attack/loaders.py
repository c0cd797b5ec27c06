"""The loaders of drawn programs: classes that users derive, and a record of which library's iterators serve them."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch.utils.data
from torch.utils.data import dataloader as torchs

import shmloader


def calls_super(base: Any) -> Any:
    """A class whose `__iter__` is a generator around its base's."""

    class Loader(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return super().__iter__()

    return Loader


def asks_for_an_iterator(base: Any) -> Any:
    """A class that makes its own iterator with torch's hook, as ultralytics' loader does."""

    class Loader(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return self._get_iterator()

    return Loader


def calls_torchs_method(base: Any) -> Any:
    """A class that calls the `__iter__` of torch's class by name."""

    class Loader(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return torch.utils.data.DataLoader.__iter__(self)

    return Loader


def names_torchs_iterator(base: Any) -> Any:
    """A class that makes torch's iterator of workers by name, so that nothing of ours serves it."""

    class Loader(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return torchs._MultiProcessingDataLoaderIter(self)

    return Loader


LOADERS: dict[str, Any] = {
    "calls_super": calls_super,
    "asks_for_an_iterator": asks_for_an_iterator,
    "calls_torchs_method": calls_torchs_method,
    "names_torchs_iterator": names_torchs_iterator,
}
NOT_PERSISTENT = ("asks_for_an_iterator", "names_torchs_iterator")  # each iter() makes a new iterator
OFF_THE_RING = ("names_torchs_iterator",)

_served_by_torch: weakref.WeakSet[Any] = weakref.WeakSet()


def _record(kind: Any) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def recorded(self: Any, loader: Any) -> None:
        if isinstance(loader, shmloader.DataLoader):
            _served_by_torch.add(loader)
        make(self, loader)

    # as if torch had compiled it, so that shmloader does not take it for other code's
    recorded.__code__ = recorded.__code__.replace(co_filename=torchs.DataLoader.__len__.__code__.co_filename)
    kind.__init__ = recorded


def record_iterators() -> None:
    """From now on, record each iterator of torch's that is made for a loader of ours."""
    _record(torchs._MultiProcessingDataLoaderIter)
    _record(torchs._SingleProcessDataLoaderIter)


def riding(loader: Any) -> tuple[bool, bool] | None:
    """Whether a loader of ours says that its batches ride the ring, and whether they do; None: it is torch's."""
    if not isinstance(loader, shmloader.DataLoader):
        return None
    return loader.rides_ring, loader not in _served_by_torch
