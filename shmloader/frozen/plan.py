"""Finds what can be frozen in a dataset, writes it, and puts columns in its place.
Decides where the search looks, what is large enough, and what stays as it is.  Lists all of that for the user.

Everything is written before anything is replaced, so an error leaves the dataset unchanged.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset

from shmloader.core.frozen_rows import FrozenDict, FrozenList, Pages
from shmloader.frozen.pack import NotPlain, owners, pack, pack_dict
from shmloader.system.sealed_memory import Counter, SealedMemory, array_over, memory_of, tensor_over

LEAST = 64  # items: a shorter list is smaller than a page
LEAST_BYTES = 4096  # of an array or a tensor: a page
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque, FrozenList, FrozenDict)
MOST_WALKED = 10_000  # items: in a longer list or dict the search does not look at each

Make = Callable[[SealedMemory], Any]


@dataclass
class Found:
    """Something large in a dataset.

    Attributes:
        name: Its name in the user's terms: `samples`, `coco.anns`, `datasets[1].samples`.
        value: The object.
        why_not: Why it stays as it is; None if it can be frozen.
        size: The bytes that it takes when frozen.
        make: Makes the replacement.
    """

    name: str
    value: Any
    why_not: str | None = None
    size: int = 0
    make: Make | None = None


@dataclass
class Plan:
    """What was found, and which objects hold it."""

    found: list[Found] = field(default_factory=list)
    places: list[tuple[Any, Any, int]] = field(default_factory=list)  # a dict or list, a key in it, a value's id
    tuples: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # by id: tuples that may hold something found

    @property
    def is_empty(self) -> bool:
        return all(found.make is None for found in self.found)

    def carry_out(self, memory: SealedMemory) -> None:
        """Replace everything that was found."""
        made = {id(found.value): found.make(memory) for found in self.found if found.make is not None}
        for one in self.tuples.values():
            self._remake(one, made)
        for holder, key, value in self.places:
            if value in made:
                holder[key] = made[value]

    def _remake(self, value: Any, made: dict[int, Any]) -> Any:
        """The replacement of a value; for a tuple that holds something found, another tuple."""
        if id(value) not in made and id(value) in self.tuples:
            items = [self._remake(item, made) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                made[id(value)] = tuple(items)
        return made.get(id(value), value)


def planned(dataset: Any, writer: Counter, least: int) -> Plan:
    """Write what can be frozen in a dataset; returns the plan for replacing it."""
    plan = Plan()
    known: dict[int, Any] = {}
    large: set[int] = set()
    for name, value, holder, key in walk(dataset, least):
        if id(value) not in known:
            known[id(value)] = value
            if is_large(value, least):
                large.add(id(value))
                plan.found.append(Found(name, value))
            elif type(value) is tuple:
                plan.tuples[id(value)] = value
        if type(holder) is not tuple and (id(value) in large or id(value) in plan.tuples):
            plan.places.append((holder, key, id(value)))
    overlapping = _overlapping(list(known.values()), large)
    for found in plan.found:
        _write(found, writer, overlapping)
    return plan


def explain(dataset: Any) -> str:
    """List what `shmloader.freeze` has frozen in a dataset, and what it has left.

    Args:
        dataset: A dataset, frozen or not.

    Returns:
        A line for each large attribute.

    Example:
        >>> import shmloader
        >>> class Numbers:
        ...     def __init__(self):
        ...         self.labels = list(range(1000))
        >>> print(shmloader.frozen.explain(shmloader.freeze(Numbers())))
        frozen: labels, a list of 1,000, 2,000 bytes
        frozen in all: 2,000 bytes
    """
    lines, total = [], 0
    known = set()
    for name, value, _, _ in walk(dataset, LEAST):
        if is_frozen(value) and id(value) not in known:
            known.add(id(value))
            size = value.pages.size if isinstance(value, (FrozenList, FrozenDict)) else value.nbytes
            total += size
            lines.append(f"frozen: {name}, {_word(value)}, {size:,} bytes")
    for found in planned(dataset, Counter(), LEAST).found:
        if found.why_not is None:
            lines.append(f"not frozen yet: {found.name}, {_word(found.value)}; it would take {found.size:,} bytes")
        else:
            lines.append(f"left as it is: {found.name}, {_word(found.value)}, because of {found.why_not}")
    return "\n".join([*lines, f"frozen in all: {total:,} bytes"])


def _word(value: Any) -> str:
    if isinstance(value, (numpy.ndarray, torch.Tensor)):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    kind = {"FrozenList": "list", "FrozenDict": "dict"}.get(type(value).__name__, type(value).__name__)
    return f"a {kind} of {len(value):,}"


# ------------------------------------------------------------------------------------------------------------ the walk

Step = tuple[str, Any, Any, Any]  # the name, the value, what holds it, and under which key


def walk(dataset: Any, least: int) -> Iterator[Step]:
    """Every attribute and item that the search meets; an object with several names comes once for each."""
    waiting: collections.deque[tuple[str, Any]] = collections.deque([("", dataset)])
    seen = {id(dataset)}
    while waiting:
        prefix, holder = waiting.popleft()
        for name, value, place, key in _within(prefix, holder):
            yield name, value, place, key
            if id(value) not in seen and not is_frozen(value):
                seen.add(id(value))
                if _is_looked_into(value, least):
                    waiting.append((name, value))


def _within(prefix: str, holder: Any) -> Iterator[Step]:
    if type(holder) in (dict, collections.OrderedDict, collections.defaultdict):
        for key in list(holder):
            yield f"{prefix}[{key!r}]", holder[key], holder, key
    elif type(holder) in (list, tuple):
        for k in range(len(holder)):
            yield f"{prefix}[{k}]", holder[k], holder, k
    else:
        held = getattr(holder, "__dict__", {})
        for name in list(held):
            yield f"{prefix}.{name}" if prefix else name, held[name], held, name


def _is_looked_into(value: Any, least: int) -> bool:
    """Whether a value is not frozen itself, but may hold something that can be."""
    if type(value) in (list, tuple, dict, collections.OrderedDict, collections.defaultdict):
        return len(value) < MOST_WALKED and (len(value) < least or _holds_objects(value))
    return _is_plain_object(value)


def _is_plain_object(value: Any) -> bool:
    """Whether an object is no more than its attributes: a dataset, or one that pickle takes apart like any other."""
    kind = type(value)
    try:
        if issubclass(kind, (type, torch.nn.Module, torch.Tensor, BaseException)) or not isinstance(vars(value), dict):
            return False
    except Exception:  # it has none, or a property of the user's raised: the search leaves this object out
        return False
    if issubclass(kind, Dataset):
        return True
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:  # threads, locks, partial functions
        return False
    own = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__reduce__", "__reduce_ex__")
    return all(getattr(kind, name, None) is getattr(object, name, None) for name in own)


# ------------------------------------------------------------------------------------------------------- what is frozen


def is_frozen(value: Any) -> bool:
    """Whether freeze() made it."""
    if type(value) in (FrozenList, FrozenDict):  # a copy, from a file for example, owns its bytes
        return type(value.pages.memory) is SealedMemory
    return type(value) in (numpy.ndarray, torch.Tensor) and memory_of(value) is not None


def is_large(value: Any, least: int) -> bool:
    """Whether it is large enough for a place in shared memory, if it can have one."""
    kind = type(value)
    try:
        if issubclass(kind, (numpy.ndarray, torch.Tensor)):
            return bool(value.shape) and value.nbytes >= LEAST_BYTES and not is_frozen(value)
        return issubclass(kind, CONTAINERS) and len(value) >= least and not is_frozen(value)
    except Exception:  # a method of the user's class raised
        return False


def _holds_objects(value: Any) -> bool:
    return any(_is_plain_object(item) for item in (value.values() if isinstance(value, dict) else value))


def _write(found: Found, writer: Counter, overlapping: set[int]) -> None:
    """Write one object, or note why it stays."""
    value = found.value
    first = writer.begin()
    try:
        if id(value) in overlapping:
            raise NotPlain("it shares memory with another attribute")
        if type(value) is list:
            found.make = _list_maker(pack(value, writer), len(value), writer)
        elif type(value) in (FrozenList, FrozenDict):
            found.make = _copy_maker(value, writer)
        elif isinstance(value, numpy.ndarray):
            found.make = _array_maker(value, writer)
        elif isinstance(value, torch.Tensor):
            found.make = _tensor_maker(value, writer)
        elif type(value) in (dict, collections.defaultdict):  # an OrderedDict compares the order
            found.make = _dict_maker(value, writer)
        else:
            raise NotPlain(f"its class, {type(value).__name__}")
        found.size = writer.size - first
    except (NotPlain, RecursionError) as reason:
        found.why_not = str(reason)
        writer.forget(first)


def _list_maker(layout: Any, count: int, writer: Counter) -> Make:
    first, size = writer.first, writer.size - writer.first
    return lambda memory: FrozenList(Pages(memory, first, size), layout, count)


def _copy_maker(value: Any, writer: Counter) -> Make:
    pages = value.pages
    writer.put(memoryview(pages.memory)[pages.place : pages.place + pages.size])
    first, (kind, (_, *rest)) = writer.first, value.__reduce__()
    return lambda memory: kind(Pages(memory, first, pages.size), *rest)


def _dict_maker(value: Any, writer: Counter) -> Make:
    factory = getattr(value, "default_factory", None)
    if factory not in (None, list, dict, set, int, float, str, tuple):
        raise NotPlain("a defaultdict whose factory is a function")
    keys, values, table, bits = pack_dict(value, writer)
    first, size, count = writer.first, writer.size - writer.first, len(value)
    return lambda memory: FrozenDict(Pages(memory, first, size), keys, values, count, table, bits, factory)


def _array_maker(value: Any, writer: Counter) -> Make:
    if type(value) is not numpy.ndarray:
        raise NotPlain(f"an array of class {type(value).__name__}")
    if value.dtype.hasobject or not value.dtype.isnative or value.dtype.metadata:
        raise NotPlain(f"an array of {value.dtype}")
    if not value.flags.c_contiguous:
        raise NotPlain("an array that is strided")
    if value.base is not None and (type(value.base) is not numpy.ndarray or sys.getrefcount(value.base) > 2):
        raise NotPlain("an array over memory that others use")
    place = writer.put(value.reshape(-1).view(numpy.uint8)) + writer.first  # NumPy gives no buffer of datetimes
    dtype, shape, writeable = value.dtype, value.shape, value.flags.writeable
    return lambda memory: array_over(memory, place, dtype, shape, writeable)


def _tensor_maker(value: torch.Tensor, writer: Counter) -> Make:
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
        raise NotPlain(f"a tensor of class {type(value).__name__} on {value.device}, {value.layout}")
    if value.is_quantized or value.is_nested or value.requires_grad or value.is_conj() or value.is_neg():
        raise NotPlain("a tensor with a gradient, quantized, nested, conjugated or negated")
    if _storage_of(value) is None or value.__dict__:
        raise NotPlain("a tensor without memory, or with attributes of its own")
    if not value.is_contiguous() or value.untyped_storage().nbytes() != value.nbytes:
        raise NotPlain("a tensor that is strided, or a part of another")
    if value.is_shared():
        raise NotPlain("a shared tensor: workers may write into it for one another")
    place = writer.put(value.view(-1).view(torch.uint8).numpy()) + writer.first
    dtype, shape = value.dtype, tuple(value.shape)
    return lambda memory: tensor_over(memory, place, dtype, shape)


def _overlapping(values: list[Any], large: set[int]) -> set[int]:
    """The ids of arrays, tensors and large lists of arrays that share memory with one another."""
    bounds = []
    for value in values:
        if issubclass(type(value), numpy.ndarray):
            bounds.append((*_bounds(value), id(value)))
        elif id(value) in large and type(value) is list and value and type(value[0]) is numpy.ndarray:
            owned = owners(one for one in value if type(one) is numpy.ndarray)
            bounds += [(*_bounds(one), id(value)) for one in owned if one.nbytes]
        elif (storage := _storage_of(value)) is not None:
            bounds.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), id(value)))
    found: set[int] = set()
    furthest, its = 0, 0  # the end of the memory seen so far, and the id of the array that it belongs to
    for begin, end, one in sorted(bounds):
        if begin < furthest:
            found |= {one, its}
        if end > furthest:
            furthest, its = end, one
    return found


def _bounds(array: Any) -> tuple[int, int]:
    return numpy.lib.array_utils.byte_bounds(array) if _HAS_BOUNDS else numpy.byte_bounds(array)  # type: ignore[attr-defined]


def _storage_of(value: Any) -> Any:
    """The storage of a tensor in this process's memory; None if it has none.

    Only for torch's own classes: a subclass may raise any error, or start a copy from another machine.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu":
        return None
    try:
        storage = value.untyped_storage() if value.layout is torch.strided else None
        return storage if storage is not None and storage.data_ptr() else None
    except RuntimeError:  # a tensor of a function transform, or zeros that torch makes when they are needed
        return None


_HAS_BOUNDS = hasattr(numpy.lib, "array_utils")  # since NumPy 2
