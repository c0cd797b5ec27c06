"""The attributes of an object that lie in `__slots__`, as a mapping."""

from __future__ import annotations

import types
from collections.abc import Iterator, MutableMapping
from typing import Any


class Slots(MutableMapping[str, Any]):
    """The slots of an object that have a value.

    Args:
        holder: The object.  Only classes that are written in Python count.
    """

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._members = {
            name: member
            for kind in reversed(type(holder).__mro__)
            if "__slots__" in vars(kind)
            for name, member in vars(kind).items()
            if type(member) is types.MemberDescriptorType
        }

    def __iter__(self) -> Iterator[str]:
        return (name for name, member in self._members.items() if self._has(member))

    def __len__(self) -> int:
        return sum(map(self._has, self._members.values()))

    def _has(self, member: Any) -> bool:
        try:
            member.__get__(self._holder)
        except AttributeError:
            return False
        return True

    def __getitem__(self, name: str) -> Any:
        return self._members[name].__get__(self._holder)

    def __setitem__(self, name: str, value: Any) -> None:
        self._members[name].__set__(self._holder, value)

    def __delitem__(self, name: str) -> None:
        self._members[name].__delete__(self._holder)
