"""Replaces the tensors of a batch of any structure, in the same containers, as torch's pin_memory() does."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch


def replaced(batch: Any, tensor: Callable[[torch.Tensor], Any], movable: Callable[[Any], Any]) -> Any:
    """The batch with each tensor replaced.  Containers keep their types, and everything else stays.

    Args:
        batch: Tensors in mappings, sequences, namedtuples and dataclasses, at any depth.
        tensor: Makes the new tensor of an old one.
        movable: The same for an object that has a `.to()`; such an object is not looked into.
    """
    return _Replacement(tensor, movable)(batch)


class _Replacement:
    """Replaces the tensors of a part.  (A function that calls itself would hold `tensor` until the collector runs.)"""

    def __init__(self, tensor: Callable[[torch.Tensor], Any], movable: Callable[[Any], Any]) -> None:
        self._tensor = tensor
        self._movable = movable

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (str, bytes, type)):
            return value
        if callable(getattr(value, "to", None)):
            return self._movable(value)
        if isinstance(value, Mapping):
            return updated(value, {key: self(item) for key, item in value.items()})
        if isinstance(value, tuple):
            if hasattr(value, "_fields"):
                return type(value)(*map(self, value))
            return type(value)(map(self, value))
        if isinstance(value, Sequence):
            return updated(value, [self(item) for item in value])
        if dataclasses.is_dataclass(value):
            return _instance(value, self)
        return value


def updated(container: Any, items: dict[Any, Any] | list[Any]) -> Any:
    """A container with other items, made as torch's default_collate and pin_memory() make it.

    Args:
        container: A mapping or a sequence.  If it cannot be changed, its class is enough.
        items: All of them.  If the container cannot be copied or does not take them, they are returned as they are.
    """
    try:
        if isinstance(container, (MutableMapping, MutableSequence)):
            clone: Any = copy.copy(container)  # because it may have attributes besides its items
            if isinstance(items, dict):
                clone.update(items)
            else:
                for k, item in enumerate(items):
                    clone[k] = item
            return clone
        return (container if isinstance(container, type) else type(container))(items)
    except TypeError:  # a range, for example
        return items


def _instance(value: Any, part: Callable[[Any], Any]) -> Any:
    clone = copy.copy(value)
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            object.__setattr__(clone, field.name, part(getattr(value, field.name)))  # it may be frozen
    return clone


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch, in containers and in attributes of objects.  Each object is visited once."""
    met: set[int] = set()
    left = [batch]
    while left:
        found = left.pop()
        if isinstance(found, torch.Tensor):
            yield found
        elif isinstance(found, (str, bytes, int, float, complex, type(None), type)) or id(found) in met:
            continue
        else:
            met.add(id(found))
            if isinstance(found, Mapping):
                left += found.values()
            elif isinstance(found, (list, tuple, Sequence)):
                left += found
            left += getattr(found, "__dict__", {}).values()
            left += [getattr(found, name) for name in _slots(type(found)) if hasattr(found, name)]


def _slots(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in _names(base.__dict__.get("__slots__", ()))]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
