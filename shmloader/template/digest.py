"""A hash of the objects that workers get, which shows whether they have changed.  Long lists are not pickled for it.

Pickling a list of a million paths takes a third of a second, in each epoch.  Comparing its items takes 20 milliseconds.
That is enough, because text and numbers cannot change: such a list has changed only if it has other items.  Lists,
tuples and dicts of such lists are compared level by level.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shmloader.system.opened_by_path import file_of
from shmloader.system.spawn_arguments import Pickler
from shmloader.template.forked import Spawning

LONG = 1000  # items: lists of this length and more are compared instead of pickled
CHANGING: set[type] = {list, dict}
CONTAINERS: set[type] = CHANGING | {tuple}
UNCHANGING: set[type] = {str, bytes, int, float, bool, complex, type(None)}


DEEPEST = 8  # levels of containers in a long list; a list that contains itself has no last level


class _Level(NamedTuple):
    """All items at one depth, in order."""

    items: tuple[Any, ...]
    kinds: set[type]
    lengths: tuple[int, ...]  # of the lists and dicts at this depth


class _Known(NamedTuple):
    """A list, tuple or dict, and its contents when it was first seen."""

    number: int
    value: Any  # kept alive, so that no other object gets its id
    levels: list[_Level]


class Digests:
    """Hashes of the objects that workers get, each comparable with the one before."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the object's id
        self._seen: dict[int, _Known] = {}
        self._numbers = itertools.count()

    def take(self, given: dict[str, Any]) -> bytes:
        """Hash the objects that workers get.  The hash is the same as last time unless something has changed.

        Raises:
            Exception: They cannot be pickled.
        """
        spawning, file = Spawning(), _Hash()
        self._seen = {}
        spawning.pickle(given, file, lambda file: _Short(file, self))
        self._known = self._seen  # forgets the containers that are gone
        for fd in spawning.descriptors:  # of shared tensors, for example
            file.hash.update(repr(file_of(fd)).encode())
        return bytes(file.hash.digest())

    def number_of(self, value: Any) -> int | None:
        """A number that stands for a long list in the pickle; it changes with the items.  None: pickle the list."""
        seen = self._seen.get(id(value)) or self._known.get(id(value))
        if seen is None or not _is_unchanged(seen):
            levels = _levels(value)
            if levels is None:
                return None
            seen = _Known(next(self._numbers), value, levels)
        self._seen[id(value)] = seen
        return seen.number


class _Short(Pickler):
    """Pickles a number in place of each long list."""

    def __init__(self, file: Any, digests: Digests) -> None:
        super().__init__(file)
        self._digests = digests

    def persistent_id(self, value: Any) -> int | None:
        if type(value) in CONTAINERS and len(value) >= LONG:
            return self._digests.number_of(value)
        return None


class _Hash:
    """A file for a pickler that only hashes what is written."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, written: Any) -> int:
        self.hash.update(written)
        return len(written)


def _levels(value: Any) -> list[_Level] | None:
    """The contents of a container, level by level; None if it has more than text, numbers and containers.

    The last level is the one below which nothing can change.
    """
    levels: list[_Level] = []
    within: Iterable[Any] = (value,)
    while len(levels) <= DEEPEST:
        items = tuple(within)
        kinds = set(map(type, items))
        if not kinds <= CONTAINERS | UNCHANGING:
            return None
        levels.append(_Level(items, kinds, _lengths(items, kinds)))
        if kinds <= UNCHANGING:
            while len(levels) > 1 and not levels[-2].kinds & CHANGING:
                levels.pop()
            return levels
        within = _within(items, kinds)
    return None


def _is_unchanged(known: _Known) -> bool:
    """Whether a container has the same items on all its levels."""
    above: _Level | None = None
    for level in known.levels:
        within = (known.value,) if above is None else _within(above.items, above.kinds)
        # as many items as before, because the containers one level up have their old lengths
        if not all(map(operator.is_, within, level.items)) or _lengths(level.items, level.kinds) != level.lengths:
            return False
        above = level
    return True


def _lengths(items: tuple[Any, ...], kinds: set[type]) -> tuple[int, ...]:
    return tuple(map(len, _of(items, kinds, CHANGING))) if kinds & CHANGING else ()


def _within(items: tuple[Any, ...], kinds: set[type]) -> Iterable[Any]:
    """The next level: the items of lists and tuples, then the keys of dicts, then their values."""
    chained = itertools.chain.from_iterable
    within = chained(_of(items, kinds, {list, tuple}))
    if dict not in kinds:
        return within
    dicts = _of(items, kinds, {dict})
    return itertools.chain(within, chained(dicts), chained(map(dict.values, dicts)))


def _of(items: tuple[Any, ...], kinds: set[type], wanted: set[type]) -> Sequence[Any]:
    """The items of these types."""
    return items if kinds <= wanted else [item for item in items if type(item) in wanted]
