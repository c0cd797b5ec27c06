"""Takes from a user's iterator without a call of iter() on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any


def by_next(source: Iterator[Any]) -> Iterator[Any]:
    """The same, without a call of iter(), which starts some samplers and streams again that are their own iterators."""
    return map(next, itertools.repeat(source))
