"""Takes from a user's iterator without a call of iter() on it."""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Iterator
from typing import Any


def by_next(source: Iterator[Any]) -> Iterator[Any]:
    """The same, without a call of iter(), which starts some samplers and streams again that are their own iterators."""
    return map(next, itertools.repeat(source))


def skip(source: Iterator[Any], count: int) -> Iterator[Any]:
    """The same, after so many items, or as many as there are."""
    # iter() starts no generator again, and without next() the million indices of a resume take a third of the time.
    items = source if type(source) is types.GeneratorType else by_next(source)
    collections.deque(itertools.islice(items, count), maxlen=0)
    return source
