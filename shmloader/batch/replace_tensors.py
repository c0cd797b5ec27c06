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

    def part(of: Any) -> Any:
        if isinstance(of, torch.Tensor):
            return tensor(of)
        if isinstance(of, (str, bytes, type)):
            return of
        if callable(getattr(of, "to", None)):
            return movable(of)
        if isinstance(of, Mapping):
            return _mapping(of, part)
        if isinstance(of, tuple):
            if hasattr(of, "_fields"):
                return type(of)(*map(part, of))
            return type(of)(map(part, of))
        if isinstance(of, Sequence):
            return _sequence(of, part)
        if dataclasses.is_dataclass(of):
            return _instance(of, part)
        return of

    return part(batch)


def _mapping(of: Mapping[Any, Any], part: Callable[[Any], Any]) -> Any:
    return updated(of, {key: part(value) for key, value in of.items()})


def _sequence(of: Sequence[Any], part: Callable[[Any], Any]) -> Any:
    return updated(of, [part(item) for item in of])


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


def _instance(of: Any, part: Callable[[Any], Any]) -> Any:
    clone = copy.copy(of)
    for field in dataclasses.fields(of):
        if hasattr(of, field.name):
            object.__setattr__(clone, field.name, part(getattr(of, field.name)))  # it may be frozen
    return clone


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch, in containers and in attributes of objects.  Each object is visited once."""
    met: set[int] = set()
    left = [batch]
    while left:
        of = left.pop()
        if isinstance(of, torch.Tensor):
            yield of
        elif isinstance(of, (str, bytes, int, float, complex, type(None), type)) or id(of) in met:
            continue
        else:
            met.add(id(of))
            if isinstance(of, Mapping):
                left += of.values()
            elif isinstance(of, (list, tuple, Sequence)):
                left += of
            left += getattr(of, "__dict__", {}).values()
            left += [getattr(of, name) for name in _slots(type(of)) if hasattr(of, name)]


def _slots(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in _names(base.__dict__.get("__slots__", ()))]


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
