"""Whether what workers are given is what it was: a hash of its pickle, without its long lists.

To pickle a list of a million paths takes a third of a second, and the same again in each epoch.  Text and numbers do
not change, so a list of them has changed only if it has other items, and 20 milliseconds are enough to compare them.
The same holds for lists, tuples and dicts of such lists: what is in them is compared level by level.
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

LONG = 1000  # items from which on a list is compared, and not pickled
CHANGING: set[type] = {list, dict}
CONTAINERS: set[type] = CHANGING | {tuple}
UNCHANGING: set[type] = {str, bytes, int, float, bool, complex, type(None)}


DEEPEST = 8  # levels of containers in a long list; one that contains itself has no last level


class _Level(NamedTuple):
    """Items that lie equally deep, in their order."""

    items: tuple[Any, ...]
    kinds: set[type]
    lengths: tuple[int, ...]  # of its lists and dicts


class _Known(NamedTuple):
    """A list, tuple or dict, and what was in it when it was first seen."""

    number: int
    value: Any  # as long as it is kept, no other object has its id
    levels: list[_Level]


class Digests:
    """Hashes of what workers are given, each comparable with the one before."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by the object's id
        self._seen: dict[int, _Known] = {}
        self._numbers = itertools.count()

    def take(self, given: dict[str, Any]) -> bytes:
        """A hash of what workers are given; the same as last time, unless something has changed.

        Raises:
            Exception: It cannot be pickled.
        """
        spawning, file = Spawning(), _Hash()
        self._seen = {}
        spawning.pickle(given, file, lambda file: _Short(file, self))
        self._known = self._seen  # what is not there any more is let go
        for fd in spawning.descriptors:  # those of shared tensors, say
            file.hash.update(repr(file_of(fd)).encode())
        return bytes(file.hash.digest())

    def number_of(self, value: Any) -> int | None:
        """What stands for a long list in the pickle: another number once it has other items.  None: it is pickled."""
        seen = self._seen.get(id(value)) or self._known.get(id(value))
        if seen is None or not _is_unchanged(seen):
            levels = _levels(value)
            if levels is None:
                return None
            seen = _Known(next(self._numbers), value, levels)
        self._seen[id(value)] = seen
        return seen.number


class _Short(Pickler):
    """Pickles numbers in place of long lists."""

    def __init__(self, file: Any, digests: Digests) -> None:
        super().__init__(file)
        self._digests = digests

    def persistent_id(self, value: Any) -> int | None:
        if type(value) in CONTAINERS and len(value) >= LONG:
            return self._digests.number_of(value)
        return None


class _Hash:
    """A file for a pickler, of which a hash is kept."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, written: Any) -> int:
        self.hash.update(written)
        return len(written)


def _levels(value: Any) -> list[_Level] | None:
    """What is in a container, level by level; None if not all of it is text, numbers and containers.

    The last level is the one behind which nothing can change.
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
        # as many as before, because the containers above are as long as before
        if not all(map(operator.is_, within, level.items)) or _lengths(level.items, level.kinds) != level.lengths:
            return False
        above = level
    return True


def _lengths(items: tuple[Any, ...], kinds: set[type]) -> tuple[int, ...]:
    return tuple(map(len, _of(items, kinds, CHANGING))) if kinds & CHANGING else ()


def _within(items: tuple[Any, ...], kinds: set[type]) -> Iterable[Any]:
    """What lies one level deeper: the items of lists and tuples, then the keys of dicts, then their values."""
    chained = itertools.chain.from_iterable
    within = chained(_of(items, kinds, {list, tuple}))
    if dict not in kinds:
        return within
    dicts = _of(items, kinds, {dict})
    return itertools.chain(within, chained(dicts), chained(map(dict.values, dicts)))


def _of(items: tuple[Any, ...], kinds: set[type], wanted: set[type]) -> Sequence[Any]:
    """The items of these types."""
    return items if kinds <= wanted else [item for item in items if type(item) in wanted]
