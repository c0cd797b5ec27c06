"""Takes a chunk of a batch apart into a plan and rows, to join it with the other chunks (`chunk_size`, `group_by`).
It refuses objects that do not consist of rows.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch

from shmloader.batch import objects
from shmloader.batch.replace_tensors import tensors_of
from shmloader.core.batch_tree import (
    ATOMS,
    DEEPEST,
    is_its_dict,
    is_its_elements,
    is_namedtuple,
    plain_rows,
    walk,
)
from shmloader.private.of_torch import ExceptionWrapper

Apart = tuple[tuple[Any, ...], list[Any], list[Any]]  # a batch's plan, its leaves and its objects
TEXTS = (str, bytes, bytearray, memoryview)  # sequences that are one object
WHAT_CAN = (
    "Give tensors or arrays whose first dimension is the number of samples, lists or tuples with one object a sample, "
    "or dicts, lists, tuples and dataclasses of these"
)


def walk_chunk(batch: Any, count: int, option: str) -> Apart:
    """Take a chunk of `count` samples apart.

    Args:
        batch: What the collate function gave for the chunk.
        count: See above.
        option: By which the batch was cut, for errors.

    Raises:
        RuntimeError: It does not consist of rows.
    """
    if type(batch) is ExceptionWrapper:  # as a whole, so that the trainer recognises it
        return (None,), [], [batch]
    walked = walk(batch, True)
    if not any(map(_has_attributes, walked[0])) and all(_is_plain(other, count) for other in walked[2]):
        return walked
    return _ChunkWalk(count, option).whole(batch)


def _has_attributes(token: Any) -> bool:
    """Whether a token of walk() is a tensor with attributes.  It is no row, however many items it has."""
    return type(token) is tuple and issubclass(token[0], torch.Tensor) and len(token[1]) > 0


def _is_plain(other: Any, count: int) -> bool:
    """Whether an object of walk() is empty, or consists of the rows of a chunk."""
    if type(other) is list or type(other) is tuple:
        return not other or (len(other) == count and all(type(row) in ATOMS for row in other))
    return other is None or (type(other) is dict and not other)


class _ChunkWalk:
    """Takes apart a chunk for which walk() makes no plan of rows: objects of any class, one tensor in several places.

    It gives the same tokens as walk(), which may take the other chunks apart.

    Args:
        count: the number of samples in the chunk.
        option: by which the batch was cut, for errors.
    """

    def __init__(self, count: int, option: str) -> None:
        self.count, self.option = count, option
        self.plan: list[Any] = []
        self.leaves: list[Any] = []
        self.others: list[Any] = []
        self.left: list[tuple[Any, int]] = []  # nodes still to visit, the next one last, and their depths
        self.depth = 0

    def whole(self, batch: Any) -> Apart:
        self.left.append((batch, 0))
        while self.left:
            node, self.depth = self.left.pop()
            self.node(node)
        return tuple(self.plan), self.leaves, self.others

    def node(self, node: Any) -> None:
        kind = type(node)
        if isinstance(node, torch.Tensor):
            self.tensor(node)
        elif kind is numpy.ndarray and node.dtype.kind in "biufc" and (node.dtype.isnative or objects.IN_NATIVE_ORDER):
            self.leaf(node if node.dtype.isnative else node.astype(node.dtype.newbyteorder("=")))
        elif node is None or (kind in (dict, list, tuple) and not node) or self.is_rows(node):
            self.plan.append(None)
            self.others.append(node)
        elif kind is dict:
            self.parts((dict, tuple(node)), node.values())
        elif kind is list or kind is tuple or is_namedtuple(kind):
            self.parts((kind, len(node)), node)
        elif is_its_dict(kind):
            self.parts((kind, tuple(node.__dict__)), node.__dict__.values())
        else:
            raise self.cannot(f"a {_named(node)} ({reprlib.repr(node)})")

    def parts(self, token: Any, parts: Iterable[Any]) -> None:
        self.plan.append(token)
        if self.depth >= DEEPEST:
            raise self.cannot(f"an object that contains itself, or is nested more than {DEEPEST} deep")
        self.left += [(part, self.depth + 1) for part in reversed(list(parts))]

    def is_rows(self, node: Any) -> bool:
        """Whether this is one object for each sample."""
        if type(node) is numpy.ndarray:
            return node.ndim > 0 and len(node) == self.count
        return type(node) in (list, tuple) and len(node) == self.count and all(map(_is_one_object, node))

    def tensor(self, tensor: torch.Tensor) -> None:
        elements, kind = tensor, type(tensor)
        if is_its_elements(kind) and not tensor.__dict__:
            self.plan.append((kind, ()))
            (elements,) = plain_rows([tensor]) or [tensor]
        if type(elements) is not torch.Tensor or elements.requires_grad or not objects.is_dense(elements):
            raise self.cannot(
                f"a {_named(tensor)} of layout {tensor.layout} on {tensor.device}, which has more than its elements"
            )
        self.leaf(elements)

    def leaf(self, elements: Any) -> None:
        self.plan.append(elements.dtype)
        self.leaves.append(elements)

    def cannot(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"{self.option} needs a collate function that gives rows, and for {self.count} samples it gave "
            f"{what}. {WHAT_CAN}; or leave {self.option} out"
        )


def _is_one_object(value: Any) -> bool:
    """Whether a value is one object, of which a list has one for each sample: no container and no rows."""
    if type(value) in ATOMS or isinstance(value, TEXTS):
        return True
    if isinstance(value, (torch.Tensor, numpy.ndarray, Mapping, Sequence)):
        return False
    inside = getattr(value, "__dict__", {}).values()
    if dataclasses.is_dataclass(value) and not all(type(part) in ATOMS for part in inside):
        return False
    return not any(isinstance(part, numpy.ndarray) for part in inside) and next(tensors_of(value), None) is None


def _named(value: Any) -> str:
    """A value's class, for people."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
