"""How the rows of all chunks get into one container of any class: an OrderedDict, a dataclass, a tensor subclass.

NOTE [ Shells ]

A batch in chunks is joined from rows: rows of plain tensors and arrays, and lists with one object per sample.  The
container around them may be of any class: an OrderedDict, a list with attributes, a dataclass with slots, a tensor of a
subclass.  Without the rows, it is a *shell*.  The first chunk sends the shell, and the trainer puts the rows of all
chunks into it.

    1. default_collate copies the first sample's container and updates the copy with the collated items.  An update for
       each chunk would give another result.  A Counter, for example, would add the items of one chunk to those of
       another.  So the first chunk sends the first sample's container itself, and the trainer updates it once, with all
       rows: `Updated`.
    2. If a function made the container, or changed it after default_collate had made it, the first chunk pickles it
       with holes in place of its items: `Holed`.  So you get the container that you would get if the whole batch were
       pickled.  The same is done with a tensor of a subclass.  Such a tensor counts as a container with a single item:
       the plain tensor of its elements.
    3. The attributes of a shell come from the first chunk, because default_collate keeps those of the first sample.
"""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy
import torch

from shmloader.batch import objects
from shmloader.batch.replace_tensors import tensors_of, updated
from shmloader.core.batch_tree import ATOMS, Shell
from shmloader.private.of_torch import collate, default_collate_fn_map

TEXTS = (str, bytes, bytearray, memoryview)  # sequences that are one object
WHAT_CAN = (
    "Give tensors or arrays whose first dimension is the number of samples, lists or tuples with one object a sample, "
    "or mappings, sequences and dataclasses of these"
)


class Updated(Shell):
    """A sample's container, or its class if it cannot be changed.  It is updated as default_collate does it."""

    def around(self, parts: list[Any]) -> Any:
        assert self.pickled is not None
        items = parts if self.keys is None else dict(zip(self.keys, parts, strict=True))
        return updated(objects.load(self.pickled, ()), items)


class Holed(Shell):
    """Any object, pickled without its parts."""

    def around(self, parts: list[Any]) -> Any:
        assert self.pickled is not None
        return objects.load_around(self.pickled, parts)


class OddContainer(abc.ABC):  # noqa: B024 - there is nothing to implement: it is asked isinstance() with
    """Mappings and sequences that may have more than their items: not dict, list, tuples or text."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        plain = kind in (dict, list) or issubclass(kind, (tuple, str, bytes))
        return not plain and issubclass(kind, (Mapping, Sequence))


@dataclasses.dataclass
class Made:
    """A container that default_collate made for this chunk.

    Args:
        container: The container.
        items: Its items; None if it returns other items each time.
        parts: The collated items, before the container was updated with them.
        shell: The part that is sent to the trainer.
    """

    container: Any
    items: list[Any] | None
    parts: list[Any]
    shell: Updated

    def is_untouched(self) -> bool:
        """Whether the items are unchanged."""
        return self.items is None or _are_the_same(self.items, items_of(self.container)[1])


class Containers:
    """Collates such containers as default_collate does, and records how."""

    def __init__(self) -> None:
        self.made: dict[int, Made] = {}
        self._first = True

    def begin(self, first: bool) -> None:
        """Begin another chunk.

        Args:
            first: Whether it is the first of its batch.
        """
        self.made, self._first = {}, first

    def collate(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        """An entry of default_collate_fn_map, for OddContainer."""
        first = batch[0]
        for kind in _behind_ours(collate_fn_map):
            if isinstance(first, kind):
                return collate_fn_map[kind](batch, collate_fn_map=collate_fn_map)
        is_mapping = isinstance(first, Mapping)
        plain = [{key: sample[key] for key in first} if is_mapping else list(sample) for sample in batch]
        made = collate(plain, collate_fn_map=collate_fn_map)  # a dict, or a list
        parts = list(made.values()) if is_mapping else list(made)
        pickled, error = None, None
        try:
            pickled = objects.dump_whole(_bare(first)) if self._first else None  # now, because update() may change it
        except Exception as raised:
            error = raised
        container = updated(first, made)
        if container is made and not isinstance(first, MutableSequence):
            return made  # it can be neither copied nor made again, for any number of rows
        if error is not None:
            raise error
        once, twice = items_of(container)[1], items_of(container)[1]
        shell = Updated(list(made) if is_mapping else None, pickled)
        self.made[id(container)] = Made(container, once if _are_the_same(once, twice) else None, parts, shell)
        return container


def _behind_ours(collate_fn_map: Any) -> list[Any]:
    """The entries that were added to the map after ours.  They are tried first, as they would be without ours."""
    kinds = list(collate_fn_map)
    return kinds[kinds.index(OddContainer) + 1 :]


def _are_the_same(items: list[Any], others: list[Any]) -> bool:
    return len(items) == len(others) and all(a is b for a, b in zip(items, others, strict=True))


def _bare(container: Any) -> Any:
    """The part of a container that updated() needs: without its items, if all of them are replaced anyway."""
    kind = type(container)
    if not isinstance(container, (MutableMapping, MutableSequence)):
        return kind
    plain = collections.OrderedDict
    is_dict = isinstance(container, dict) and (
        kind.update is dict.update or (kind.update is plain.update and kind.__setitem__ is plain.__setitem__)
    )
    if is_dict or (isinstance(container, list) and kind.__setitem__ is list.__setitem__):
        container = copy.copy(container)
        for key in list(container) if is_dict else range(len(container)):
            (dict if is_dict else list).__setitem__(container, key, None)
    return container


def collate_containers_by(containers: Containers) -> None:
    """From now on, default_collate collates such containers like this, in this process."""
    if collate is not None:
        default_collate_fn_map.setdefault(OddContainer, containers.collate)


def items_of(container: Any) -> tuple[list[Any] | None, list[Any]]:
    """The keys, of a mapping, and the items of a container, or the fields of a dataclass."""
    if isinstance(container, Mapping):
        keys = list(container)
        return keys, [container[key] for key in keys]
    if isinstance(container, Sequence):
        return None, list(container)
    names = [field.name for field in dataclasses.fields(container) if hasattr(container, field.name)]
    return None, [getattr(container, name) for name in names]


def is_container(value: Any) -> bool:
    return isinstance(value, (Mapping, Sequence)) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def is_one_object(value: Any) -> bool:
    """Whether a value is one object, of which a list has one for each sample: no container and no rows."""
    if type(value) in ATOMS or isinstance(value, TEXTS):
        return True
    if isinstance(value, (torch.Tensor, numpy.ndarray, Mapping, Sequence)):
        return False
    inside = getattr(value, "__dict__", {}).values()
    if dataclasses.is_dataclass(value) and not all(type(part) in ATOMS for part in inside):
        return False
    return not any(isinstance(part, numpy.ndarray) for part in inside) and next(tensors_of(value), None) is None


def named(value: Any) -> str:
    """A value's class, for people."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
