"""Finds what can be frozen in a dataset, writes it, and puts columns in its place.

Everything is written before anything is replaced, so that an error leaves the dataset as it was.
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

from shmloader.core.frozen_dict import FrozenDict
from shmloader.core.frozen_list import FrozenList
from shmloader.core.frozen_rows import Pages
from shmloader.frozen.pack import NotPlain, pack, pack_dict
from shmloader.system.sealed_memory import Counter, SealedMemory, array_over, memory_of, tensor_over

LEAST = 64  # items: a shorter list costs a process less than the page that it lies in
LEAST_BYTES = 4096  # of an array or a tensor: a page
MOST_WALKED = 10_000  # items of a list or a dict in which each is looked at

Make = Callable[[SealedMemory], Any]


@dataclass
class Found:
    """Something large in a dataset.

    Attributes:
        name: How the user would write it: `samples`, `coco.anns`, `datasets[1].samples`.
        value: What is there.
        why_not: Why it stays as it is; None where it can be frozen.
        size: Bytes that it takes frozen.
        make: Makes what replaces it.
    """

    name: str
    value: Any
    why_not: str | None = None
    size: int = 0
    make: Make | None = None


@dataclass
class Plan:
    """What was found, and where each thing is held."""

    found: list[Found] = field(default_factory=list)
    places: list[tuple[Any, Any, int]] = field(default_factory=list)  # a dict or a list, a key in it, an id

    @property
    def is_empty(self) -> bool:
        return all(found.make is None for found in self.found)

    def carry_out(self, memory: SealedMemory) -> None:
        """Replace what was found."""
        made = {id(found.value): found.make(memory) for found in self.found if found.make is not None}
        for holder, key, value in self.places:
            if value in made:
                holder[key] = made[value]


def planned(dataset: Any, writer: Counter, least: int) -> Plan:
    """Write what can be frozen in a dataset; see Plan."""
    plan = Plan()
    known: dict[int, Found | None] = {}
    for name, value, holder, key in walk(dataset, least):
        if id(value) not in known:
            known[id(value)] = None
            if is_large(value, least):
                found = known[id(value)] = Found(name, value)
                plan.found.append(found)
        if known[id(value)] is not None:
            plan.places.append((holder, key, id(value)))
    overlapping = _overlapping([found.value for found in plan.found])
    for found in plan.found:
        _write(found, writer, overlapping)
    return plan


# ------------------------------------------------------------------------------------------------------------ the walk

Step = tuple[str, Any, Any, Any]  # the name, the value, what holds it, and under which key


def walk(dataset: Any, least: int) -> Iterator[Step]:
    """Every attribute and item that is looked at, with aliases each time that they are met."""
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
    elif type(holder) is list:
        for k in range(len(holder)):
            yield f"{prefix}[{k}]", holder[k], holder, k
    else:
        held = vars(holder)
        for name in list(held):
            yield f"{prefix}.{name}" if prefix else name, held[name], held, name


def _is_looked_into(value: Any, least: int) -> bool:
    """Whether a value is not frozen itself, and may hold what can be."""
    if type(value) in (list, dict, collections.OrderedDict, collections.defaultdict):
        if len(value) >= MOST_WALKED:
            return False
        items = value if type(value) is list else value.values()
        return len(value) < least or any(_is_plain_object(item) for item in items)
    return _is_plain_object(value)


def _is_plain_object(value: Any) -> bool:
    """Whether an object is what its attributes are: a dataset, or one that pickle would take apart like any other."""
    kind = type(value)
    if isinstance(value, (type, torch.nn.Module, torch.Tensor, BaseException)) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, Dataset):
        return True
    if kind.__module__.partition(".")[0] in sys.stdlib_module_names:  # threads, locks, partial functions
        return False
    own = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__", "__reduce__", "__reduce_ex__")
    return all(getattr(kind, name, None) is getattr(object, name, None) for name in own)


# ------------------------------------------------------------------------------------------------------- what is frozen


def is_frozen(value: Any) -> bool:
    """Whether freeze() made it."""
    if type(value) in (FrozenList, FrozenDict):
        return True
    return type(value) in (numpy.ndarray, torch.Tensor) and memory_of(value) is not None


def is_large(value: Any, least: int) -> bool:
    """Whether it is worth a place in shared memory, if it can have one."""
    if type(value) in (list, dict, collections.OrderedDict, collections.defaultdict):
        return len(value) >= least and not (len(value) < MOST_WALKED and _holds_objects(value))
    if isinstance(value, (numpy.ndarray, torch.Tensor)):
        return value.nbytes >= LEAST_BYTES and not is_frozen(value)
    return False


def _holds_objects(value: Any) -> bool:
    return any(_is_plain_object(item) for item in (value if type(value) is list else value.values()))


def _write(found: Found, writer: Counter, overlapping: set[int]) -> None:
    """Write what was found, or say why it stays."""
    value = found.value
    first = writer.begin()
    try:
        if id(value) in overlapping:
            raise NotPlain("it shares memory with another attribute")
        if type(value) is list:
            found.make = _list_maker(pack(value, writer), len(value), writer)
        elif isinstance(value, numpy.ndarray):
            found.make = _array_maker(value, writer)
        elif isinstance(value, torch.Tensor):
            found.make = _tensor_maker(value, writer)
        else:
            found.make = _dict_maker(value, writer)
        found.size = writer.size - first
    except NotPlain as reason:
        found.why_not = str(reason)
        writer.forget(first)
    except RecursionError:
        found.why_not = "it is nested too deep"
        writer.forget(first)


def _list_maker(layout: Any, count: int, writer: Counter) -> Make:
    first, size = writer.first, writer.size - writer.first
    return lambda memory: FrozenList(Pages(memory, first, size), layout, count)


def _dict_maker(value: Any, writer: Counter) -> Make:
    factory = None
    if type(value) is collections.OrderedDict:
        raise NotPlain("an OrderedDict, whose comparison asks for the order")
    if type(value) is collections.defaultdict:
        factory = value.default_factory
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
    place = writer.put(value) + writer.first
    dtype, shape, writeable = value.dtype, value.shape, value.flags.writeable
    return lambda memory: array_over(memory, place, dtype, shape, writeable)


def _tensor_maker(value: torch.Tensor, writer: Counter) -> Make:
    if type(value) is not torch.Tensor:
        raise NotPlain(f"a tensor of class {type(value).__name__}")
    if value.device.type != "cpu" or value.layout is not torch.strided or value.is_quantized:
        raise NotPlain(f"a tensor on {value.device}, {value.layout}")
    if value.requires_grad or value.is_conj() or value.is_neg() or value.__dict__:
        raise NotPlain("a tensor with a gradient or attributes of its own")
    if not value.is_contiguous() or value.untyped_storage().nbytes() != value.nbytes:
        raise NotPlain("a tensor that is strided, or a part of another")
    if value.is_shared():
        raise NotPlain("a shared tensor: workers may write into it for one another")
    place = writer.put(value.view(-1).view(torch.uint8).numpy()) + writer.first
    dtype, shape = value.dtype, tuple(value.shape)
    return lambda memory: tensor_over(memory, place, dtype, shape)


def _overlapping(values: list[Any]) -> set[int]:
    """The ids of arrays and tensors that share memory with one another."""
    bounds = []
    for value in values:
        if isinstance(value, numpy.ndarray):
            low, high = numpy.lib.array_utils.byte_bounds(value) if _HAS_BOUNDS else numpy.byte_bounds(value)  # type: ignore[attr-defined]
            bounds.append((low, high, id(value)))
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout is torch.strided:
            storage = value.untyped_storage()
            bounds.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), id(value)))
    found: set[int] = set()
    furthest, its = 0, 0  # where the memory seen so far ends, and whose that is
    for begin, end, one in sorted(bounds):
        if begin < furthest:
            found |= {one, its}
        if end > furthest:
            furthest, its = end, one
    return found


_HAS_BOUNDS = hasattr(numpy.lib, "array_utils")  # as of NumPy 2
