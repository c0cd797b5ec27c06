"""What lies where in a slot: a batch is a tree, a plan of its nodes, and the bytes of its leaves.

Walking a batch gives three things:

    plan      its nodes in order: one token a node (see below).  The same for every batch of one shape of tree.
    leaves    plain CPU tensors and numpy arrays: their elements go into the slot as they are
    objects   everything else: numbers, strings, None, what only pickle understands

The plan is pickled once for each tree that a worker has not met before; its bytes are then copied into the slot with
every batch, and the trainer reads them when it meets the plan's number for the first time.  So no batch pays for
pickling its structure, and nothing is lost when a worker or a batch is.

A token is
    torch.dtype         a tensor leaf
    numpy.dtype         an array leaf
    None                an object
    (dict, keys)        a dict with these str keys; its values follow
    (list, n), (tuple, n), (a namedtuple class, n)      n children follow
    (a class, names)    an instance whose whole state is its __dict__, with these names; the values follow
"""

from __future__ import annotations

import copyreg
import struct
from collections.abc import Callable
from functools import cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from shmloader import objects
from shmloader.objects import Buffer, is_dense

Token = Any
Plan = tuple[Token, ...]
Leaf = Any  # torch.Tensor or numpy.ndarray

_DTYPES = (torch.dtype, np.dtype)  # the tokens of leaves
_ATOMS = frozenset((int, float, complex, bool, str, bytes, type(None)))
_NUMPY_DTYPE = {
    getattr(torch, name): np.dtype(name if name != "bool" else "?")
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
    )
    if hasattr(torch, name)
}


class _MetTwice(Exception):
    """A batch holds the same object in two places: only pickle keeps it one."""


def tensor_over(buffer: Buffer, dtype: torch.dtype, at: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor over a buffer, with a storage of its own that ends where the tensor ends, and keeps the buffer alive."""
    numpy_dtype = _NUMPY_DTYPE.get(dtype)
    if numpy_dtype is not None:  # 0.9 us, and 2.3 us by way of frombuffer and view
        return torch.from_numpy(np.ndarray(shape, numpy_dtype, buffer, at))
    count = 1
    for side in shape:
        count *= side
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=at).view(shape)


# ------------------------------------------------------------------------------------------------------------ walking


def walk(batch: Any) -> tuple[Plan, list[Leaf], list[Any]]:
    """Take a batch apart into its plan, its leaves and its objects."""
    kind = type(batch)
    if kind is torch.Tensor and _is_leaf(batch):
        return (batch.dtype,), [batch], []
    plan: list[Token] = []
    leaves: list[Leaf] = []
    others: list[Any] = []
    try:
        _walk(batch, plan, leaves, others, set())
    except (_MetTwice, RecursionError):
        return (None,), [], [batch]
    return tuple(plan), leaves, others


def _is_leaf(tensor: torch.Tensor) -> bool:
    return not tensor.requires_grad and is_dense(tensor)


def _walk(node: Any, plan: list[Token], leaves: list[Leaf], others: list[Any], met: set[int]) -> None:
    kind = type(node)
    if kind in _ATOMS:
        plan.append(None)
        others.append(node)
        return
    if id(node) in met:
        raise _MetTwice
    met.add(id(node))
    children: Any
    if kind is torch.Tensor:
        if _is_leaf(node):
            plan.append(node.dtype)
            leaves.append(node)
            return
    elif kind is dict:
        if node and all(type(key) is str for key in node):
            plan.append((dict, tuple(node)))
            for child in node.values():
                _walk(child, plan, leaves, others, met)
            return
    elif kind is list or kind is tuple:
        if node and not all(type(child) in _ATOMS for child in node):
            plan.append((kind, len(node)))
            for child in node:
                _walk(child, plan, leaves, others, met)
            return
    elif kind is np.ndarray:
        if node.dtype.kind in "biufc" and node.dtype.isnative:
            plan.append(node.dtype)
            leaves.append(node)
            return
    elif _is_namedtuple(kind):
        plan.append((kind, len(node)))
        for child in node:
            _walk(child, plan, leaves, others, met)
        return
    elif _is_its_dict(kind):
        names = tuple(node.__dict__)
        plan.append((kind, names))
        for name in names:
            _walk(node.__dict__[name], plan, leaves, others, met)
        return
    plan.append(None)
    others.append(node)


@cache
def _is_namedtuple(kind: type) -> bool:
    """A class that collections.namedtuple or typing.NamedTuple made, with nothing added to how it pickles."""
    return (
        issubclass(kind, tuple)
        and kind.__bases__ == (tuple,)
        and hasattr(kind, "_fields")
        and hasattr(kind, "_make")
        and "__reduce__" not in vars(kind)
        and "__reduce_ex__" not in vars(kind)
        and kind not in copyreg.dispatch_table
    )


@cache
def _is_its_dict(kind: type) -> bool:
    """Whether pickle would take an instance apart into its __dict__ and nothing else: dataclasses, plain classes."""
    if type(kind) is not type or kind in copyreg.dispatch_table or kind in ForkingPickler._extra_reducers:  # type: ignore[attr-defined]
        return False
    for base in kind.__mro__[:-1]:
        if not base.__flags__ & (1 << 9) or vars(base).get("__slots__"):  # Py_TPFLAGS_HEAPTYPE: written in Python
            return False
    own = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__getinitargs__")
    return (
        kind.__dictoffset__ != 0
        and kind.__new__ is object.__new__
        and kind.__reduce__ is object.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and getattr(kind, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not any(hasattr(kind, name) for name in own)
    )


# ------------------------------------------------------------------------------------------------------------ writing


class Slot(Protocol):
    """Where a batch is written: the payload that a worker has claimed (worker.py)."""

    def allocate(self, size: int) -> int: ...
    def place(self, leaf: Leaf) -> int: ...
    def write(self, at: int, data: Buffer) -> None: ...
    def seal(self, meta_at: int, meta_size: int, objects_at: int, objects_size: int) -> None: ...


class Writer:
    """Writes batches into slots; one a worker, for it knows which plans it has written before.

    Args:
        writer: the worker's index, which makes the numbers of its plans its own.
    """

    MOST_PLANS = 1024  # a tree that never repeats must not fill the memory: forget them all and begin anew

    def __init__(self, writer: int) -> None:
        self._next = writer << 40
        self._plans: dict[Plan, tuple[int, bytes]] = {}

    def write(self, batch: Any, slot: Slot) -> None:
        """Put a batch into the slot.  The order is leaves, plan, meta, objects, so that meta repeats if sizes do."""
        plan, leaves, others = walk(batch)
        pickled = objects.dump(others) if others else None
        number, text = self._plans.get(plan) or self._learn(plan)
        words = [0, 0, 0]
        for leaf in leaves:
            shape = leaf.shape
            words.append(slot.place(leaf))
            words.append(len(shape))
            words.extend(shape)
        plan_at = slot.allocate(len(text))
        slot.write(plan_at, text)
        words[0], words[1], words[2] = number, plan_at, len(text)
        meta = struct.pack(f"{len(words)}q", *words)
        meta_at = slot.allocate(len(meta))
        slot.write(meta_at, meta)
        if pickled is None:
            slot.seal(meta_at, len(meta), 0, 0)
        else:
            slot.seal(meta_at, len(meta), *_write_objects(slot, *pickled))

    def _learn(self, plan: Plan) -> tuple[int, bytes]:
        if len(self._plans) >= self.MOST_PLANS:
            self._plans.clear()
        known = self._next, objects.dump(plan)[0]
        self._next += 1
        self._plans[plan] = known
        return known


def _write_objects(slot: Slot, pickled: bytes, buffers: list[Any]) -> tuple[int, int]:
    """Pickled leaves: a table of (offset, bytes) for the pickle and each buffer beside it."""
    words = []
    for data in (pickled, *buffers):
        raw = memoryview(data) if isinstance(data, bytes) else data.raw()
        words += [slot.allocate(raw.nbytes), raw.nbytes]
        slot.write(words[-2], raw)
    table = struct.pack(f"{len(words)}q", *words)
    at = slot.allocate(len(table))
    slot.write(at, table)
    return at, len(table)


# ------------------------------------------------------------------------------------------------------------ reading


Build = Callable[[list[Leaf], list[Any]], Any]


class Recipe(NamedTuple):
    """How to build one kind of batch over a slot: worked out once for each meta that a reader meets."""

    leaves: list[tuple[Token, int, tuple[int, ...]]]  # dtype, offset in bytes, shape
    build: Build


class Reader:
    """Reads what Writers wrote; one a trainer, for it knows which plans and sizes it has met before."""

    MOST_RECIPES = 1024

    def __init__(self) -> None:
        self._plans: dict[int, tuple[Plan, Build]] = {}
        self._recipes: dict[bytes, Recipe] = {}

    def read(self, buffer: Buffer, meta: bytes, table: tuple[int, int], copy: bool) -> Any:
        """The batch over a slot's bytes, or in memory of its own.

        Args:
            buffer: exports the slot's bytes; tensors over it keep it alive.
            meta: what seal() got.
            table: offset and size of the table of pickled leaves; size 0: there are none.
            copy: give each leaf memory of its own; the buffer is then free when this returns.
        """
        recipe = self._recipes.get(meta)
        if recipe is None:
            recipe = self._work_out(buffer, meta)
        leaves: list[Leaf] = []
        for token, at, shape in recipe.leaves:
            if type(token) is torch.dtype:
                leaf = tensor_over(buffer, token, at, shape)
                leaves.append(leaf.clone() if copy else leaf)
            else:
                array = np.ndarray(shape, token, buffer, at)
                leaves.append(array.copy() if copy else array)
        others = _read_objects(buffer, *table, copy) if table[1] else []
        return recipe.build(leaves, others)

    def _work_out(self, buffer: Buffer, meta: bytes) -> Recipe:
        words = struct.unpack(f"{len(meta) // 8}q", meta)
        number, plan_at, plan_size = words[:3]
        if number not in self._plans:
            if len(self._plans) >= self.MOST_RECIPES:
                self._plans.clear()
            plan = objects.load(bytes(memoryview(buffer)[plan_at : plan_at + plan_size]), ())
            self._plans[number] = plan, _Assembly(plan).next()
        plan, build = self._plans[number]
        leaves = []
        k = 3
        for token in plan:
            if isinstance(token, _DTYPES):
                at, sides = words[k : k + 2]
                leaves.append((token, at, words[k + 2 : k + 2 + sides]))
                k += 2 + sides
        if len(self._recipes) >= self.MOST_RECIPES:
            self._recipes.clear()
        recipe = self._recipes[meta] = Recipe(leaves, build)
        return recipe


def _read_objects(buffer: Buffer, at: int, size: int, copy: bool) -> list[Any]:
    whole = memoryview(buffer)
    words = struct.unpack(f"{size // 8}q", whole[at : at + size])
    parts: list[Any] = [whole[words[k] : words[k] + words[k + 1]] for k in range(0, len(words), 2)]
    beside = [bytearray(part) for part in parts[1:]] if copy else parts[1:]
    return list(objects.load(parts[0], beside))


class _Assembly:
    """Reads a plan node by node, and makes the function that puts a batch together from leaves and objects."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.node = self.leaf = self.other = 0

    def next(self) -> Build:
        token = self.plan[self.node]
        self.node += 1
        if token is None:
            other = self.other
            self.other += 1
            return lambda leaves, others: others[other]
        if isinstance(token, _DTYPES):
            leaf = self.leaf
            self.leaf += 1
            return lambda leaves, others: leaves[leaf]
        return self._container(*token)

    def _container(self, kind: type, what: int | tuple[str, ...]) -> Build:
        make = _maker(kind, what)
        count = what if isinstance(what, int) else len(what)
        if all(isinstance(token, _DTYPES) for token in self.plan[self.node : self.node + count]):
            start, stop = self.leaf, self.leaf + count  # one slice, and not a call for each leaf
            self.leaf, self.node = stop, self.node + count
            return lambda leaves, others: make(leaves[start:stop])
        children = [self.next() for _ in range(count)]
        return lambda leaves, others: make([child(leaves, others) for child in children])


def _maker(kind: type, what: int | tuple[str, ...]) -> Callable[[list[Any]], Any]:
    """How a container is made of its children."""
    if kind is list:
        return lambda children: children
    if kind is tuple:
        return tuple
    if isinstance(what, int):
        return kind._make  # type: ignore[attr-defined, no-any-return]
    if kind is dict:
        return lambda children: dict(zip(what, children, strict=True))

    def instance(children: list[Any]) -> Any:
        made = object.__new__(kind)
        made.__dict__.update(zip(what, children, strict=True))
        return made

    return instance
