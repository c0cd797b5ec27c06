"""The loaders of drawn programs: classes that users derive, and which library's iterators serve them."""

from __future__ import annotations

from typing import Any

import torch.utils.data
from torch.utils.data import dataloader as torchs

import shmloader
from tests.attack.hooks import Tagged, library_of
from tests.attack.unlike import Unlike


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


def hooks_itself(base: Any) -> Any:
    """A class of which each loader has a `_get_iterator` of its own."""

    class Loader(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            make = super()._get_iterator
            self._get_iterator = lambda: Tagged(make())

    return Loader


def comes_after(base: Any) -> Any:
    """A class that has a loader of the user's own, which derives torch's, behind its base."""

    class Marks(torchs.DataLoader[Any]):
        def __iter__(self) -> Any:
            return Tagged(super().__iter__())

    return Marks if base is torchs.DataLoader else type("Loader", (base, Marks), {})


def unlike(base: Any) -> Any:
    """A class whose loaders may not be compared."""
    return type("Loader", (Unlike, base), {})


LOADERS: dict[str, Any] = {
    "calls_super": calls_super,
    "asks_for_an_iterator": asks_for_an_iterator,
    "calls_torchs_method": calls_torchs_method,
    "names_torchs_iterator": names_torchs_iterator,
    "hooks_itself": hooks_itself,
    "comes_after": comes_after,
    "unlike": unlike,
}
NOT_PERSISTENT = ("asks_for_an_iterator", "names_torchs_iterator")  # each iter() makes a new iterator
OFF_THE_RING = ("names_torchs_iterator",)


def riding(loader: Any, iterator: Any) -> tuple[bool, bool] | None:
    """Whether a loader of ours says that its batches ride the ring, and whether they do.

    None: the loader is torch's, or nobody can know, because the user's generator is around the iterator.
    """
    library = library_of(iterator)
    if not isinstance(loader, shmloader.DataLoader) or library not in ("torch", "shmloader"):
        return None
    return loader.rides_ring, library == "shmloader"
