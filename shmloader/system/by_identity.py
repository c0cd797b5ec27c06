"""A mapping whose keys are a user's loaders: it never hashes and never compares them.

A loader may define its own `==`, as a dataclass does, and then it has no hash.  Or its `==` raises.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Default = TypeVar("Default")


class ByIdentity(Generic[Value]):
    """Values of objects that may be gone: with its object, a value is dropped.

    Any thread may use it: each method looks once, or changes one entry in one step.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def _entry(self, key: Any, value: Value) -> tuple[weakref.ref[Any], Value]:
        # C code alone calls pop(id, reference), so no signal's handler can break it off
        return weakref.ref(key, functools.partial(self._entries.pop, id(key))), value

    def get(self, key: Any, default: Default = None) -> Value | Default:  # type: ignore[assignment]
        """The value of an object, or the default."""
        found = self._entries.get(id(key))
        return found[1] if found is not None and found[0]() is key else default

    def setdefault(self, key: Any, value: Value) -> Value:
        """The value of an object, which is this one if it had none."""
        reference, found = self._entries.setdefault(id(key), entry := self._entry(key, value))
        if reference() is not key:  # a dead object had this id
            self._entries[id(key)] = entry
            return value
        return found

    def pop(self, key: Any, default: Default = None) -> Value | Default:  # type: ignore[assignment]
        """Take the value of an object away."""
        reference, found = self._entries.pop(id(key), (None, default))
        return found if reference is not None and reference() is key else default

    def __setitem__(self, key: Any, value: Value) -> None:
        self._entries[id(key)] = self._entry(key, value)

    def __contains__(self, key: object) -> bool:
        found = self._entries.get(id(key))
        return found is not None and found[0]() is key

    def items(self) -> list[tuple[Any, Value]]:
        """The objects that are not gone, and their values; the one that came first is first."""
        found = [(reference(), value) for reference, value in list(self._entries.values())]
        return [(key, value) for key, value in found if key is not None]
