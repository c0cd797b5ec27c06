"""Visits every state that a model can reach, up to two million.
It finds violated promises, deadlocks and states without a way to an end, and the shortest trace to the first one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from model.promises import NO_DEADLOCK, TERMINATION, Violated


class Model(Protocol):
    """What can be explored."""

    start: bytes

    def moves(self, s: bytes) -> Iterator[tuple[str, bytearray]]:
        """What may happen next, and the state it leads to; "! ..." need not happen.  Raises Violated."""

    def ended(self, s: bytes) -> bool:
        """Whether all is over."""


@dataclass
class Result:
    """What explore() found: the property violated, or "", how many states, and the way to the bad one."""

    violated: str
    states: int
    trace: list[str]


def explore(model: Model, most: int = 2_000_000) -> Result:
    """Visit every state that can be reached, nearest first."""
    order, parent, ids = [model.start], array("l", [-1]), {model.start: 0}
    source, target, ends = array("l"), array("l"), []

    def result(violated: str, k: int = 0) -> Result:
        trace: list[str] = []
        try:
            list(model.moves(order[k]))
        except Violated:
            trace.append("the step that violates it")
        while k > 0:
            trace.append(next(label for label, n in model.moves(order[parent[k]]) if bytes(n) == order[k]))
            k = parent[k]
        return Result(violated, len(order), trace[::-1])

    for k, s in enumerate(order):  # grows as we go
        stuck = True
        try:
            for label, n in model.moves(s):
                key = bytes(n)
                at = ids.setdefault(key, len(order))
                if at == len(order):
                    order.append(key)
                    parent.append(k)
                if label[0] != "!":
                    stuck = False
                    source.append(k)
                    target.append(at)
        except Violated as violated:
            return result(violated.args[0], k)
        if model.ended(s):
            ends.append(k)
        elif stuck:
            return result(NO_DEADLOCK, k)
        if len(order) > most:
            raise MemoryError(f"more than {most} states")

    fine = bytearray(len(order))  # from which an end can be reached
    for k in ends:
        fine[k] = 1
    count = -1
    while count != (count := fine.count(1)):
        for a, b in zip(reversed(source), reversed(target), strict=True):
            if fine[b]:
                fine[a] = 1
    return Result("", len(order), []) if all(fine) else result(TERMINATION, fine.index(0))
