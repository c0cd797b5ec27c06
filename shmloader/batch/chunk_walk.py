"""Takes a chunk of a batch apart into a plan and rows, to join it with the other chunks (`chunk_size`, `group_by`).
It refuses objects that do not consist of rows.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from shmloader.batch import containers, objects
from shmloader.batch.containers import Containers, Holed, Made
from shmloader.core.batch_tree import (
    ATOMS,
    DEEPEST,
    MaybeAgain,
    Shell,
    all_of_str,
    is_its_dict,
    is_its_elements,
    is_namedtuple,
    walk,
)
from shmloader.private.of_torch import ExceptionWrapper

Apart = tuple[tuple[Any, ...], list[Any], list[Any]]  # a batch's plan, its leaves and its objects


class ChunkWalks:
    """Takes a worker's chunks apart, one after another."""

    def __init__(self) -> None:
        self.containers = Containers()
        self._first = True
        self._option = ""

    def begin(self, first: bool, option: str) -> None:
        """Begin a chunk.

        Args:
            first: Whether it is the first of its batch.
            option: By which the batch was cut, for errors.
        """
        self._first, self._option = first, option
        self.containers.begin(first)

    def walk(self, batch: Any, count: int) -> Apart:
        """Take a chunk of `count` samples apart.

        Raises:
            RuntimeError: it does not consist of rows.
        """
        made = self.containers.made
        self.containers.made = {}  # references held here would count as kept: NOTE [ Slot ring ]
        if type(batch) is ExceptionWrapper:  # as a whole, so that the trainer recognises it
            return (None,), [], [batch]
        walked = walk(batch, True)
        if (
            not made
            and not any(map(_has_attributes, walked[0]))
            and all(_is_plain(other, count) for other in walked[2])
        ):
            return walked
        return _ChunkWalk(count, self._first, self._option, made).whole(batch)


def _has_attributes(token: Any) -> bool:
    """Whether a token of walk() is a tensor with attributes.  It is no row, however many items it has."""
    return type(token) is tuple and issubclass(token[0], torch.Tensor) and len(token[1]) > 0


def _is_plain(other: Any, count: int) -> bool:
    """Whether an object of walk() is empty, or consists of the rows of a chunk."""
    if type(other) is list or type(other) is tuple:
        return not other or (len(other) == count and all(type(row) in ATOMS for row in other))
    return other is None or (type(other) is dict and not other)


class _ChunkWalk:
    """Takes apart a chunk for which walk() cannot make a plan of rows: see containers.py.

    It gives the same tokens as walk(), and also tokens of shells.

    Args:
        count: the number of samples in the chunk.
        first: whether it is the batch's first, which sends the shells.
        option: by which the batch was cut, for errors.
        made: by id, the containers of it that default_collate has made.
    """

    def __init__(self, count: int, first: bool, option: str, made: dict[int, Made]) -> None:
        self.count, self.first, self.option, self.made = count, first, option, made
        self.plan: list[Any] = []
        self.leaves: list[Any] = []
        self.others: list[Any] = []
        self.met: dict[int, int] = {}  # id of an object that became a leaf -> the number of the leaf
        self.alive: list[Any] = []  # keeps these alive, because ids are reused
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
        made = self.made.get(id(node))
        if made is not None and made.is_untouched():
            self.others.append(made.shell)
            self.parts((Shell, len(made.parts)), made.parts)
        elif isinstance(node, torch.Tensor):
            self.tensor(node)
        elif kind is numpy.ndarray and node.dtype.kind in "biufc" and (node.dtype.isnative or objects.IN_NATIVE_ORDER):
            self.leaf(node, node if node.dtype.isnative else node.astype(node.dtype.newbyteorder("=")))
        elif node is None or (kind in (dict, list, tuple) and not node) or self.is_rows(node):
            self.plan.append(None)
            self.others.append(node)
        elif kind is dict and all_of_str(node):
            self.parts((dict, tuple(node)), node.values())
        elif kind is list or kind is tuple or is_namedtuple(kind):
            self.parts((kind, len(node)), node)
        elif is_its_dict(kind):
            self.parts((kind, tuple(node.__dict__)), node.__dict__.values())
        elif containers.is_container(node) and not isinstance(node, containers.TEXTS):
            self.holed(node, *containers.items_of(node))
        else:
            raise self.cannot(f"a {containers.named(node)} ({reprlib.repr(node)})")

    def parts(self, token: Any, parts: Iterable[Any]) -> None:
        self.plan.append(token)
        if self.depth >= DEEPEST:
            raise self.cannot(f"an object that contains itself, or is nested more than {DEEPEST} deep")
        self.left += [(part, self.depth + 1) for part in reversed(list(parts))]

    def is_rows(self, node: Any) -> bool:
        """Whether this is one object for each sample."""
        if type(node) is numpy.ndarray:
            return node.ndim > 0 and len(node) == self.count
        return (
            type(node) in (list, tuple)
            and len(node) == self.count
            and all(containers.is_one_object(one) and id(one) not in self.made for one in node)
        )

    def tensor(self, tensor: torch.Tensor) -> None:
        if type(tensor) is torch.Tensor and not tensor.requires_grad and objects.is_dense(tensor):
            self.leaf(tensor, tensor)
            return
        elements = objects.elements_of(tensor)
        if elements is None:
            raise self.cannot(
                f"a {containers.named(tensor)} of layout {tensor.layout} on {tensor.device}, which has more than its "
                "elements"
            )
        if is_its_elements(type(tensor)) and not tensor.__dict__:  # as in walk(), which may take other chunks apart
            self.plan.append((type(tensor), ()))
        else:
            self.others.append(Holed(None, objects.dump_around(tensor, [elements])[0] if self.first else None))
            self.plan.append((Shell, 1))
        self.leaf(tensor, elements)

    def leaf(self, node: Any, elements: Any) -> None:
        before = self.met.setdefault(id(node), len(self.leaves))
        if before < len(self.leaves):
            self.plan.append((MaybeAgain, before))
        self.plan.append(elements.dtype)
        self.leaves.append(elements)
        self.alive.append(node)

    def holed(self, node: Any, keys: list[Any] | None, items: list[Any]) -> None:
        pickled = None
        if self.first:
            pickled, met = objects.dump_around(node, items)
            if any(item is not None and id(item) not in met for item in items):
                raise self.cannot(f"a {containers.named(node)}, whose pickle does not have its items")
        self.others.append(Holed(keys, pickled))
        self.parts((Shell, len(items)), items)

    def cannot(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"{self.option} needs a collate function that gives rows, and for {self.count} samples it gave "
            f"{what}. {containers.WHAT_CAN}; or leave {self.option} out"
        )
