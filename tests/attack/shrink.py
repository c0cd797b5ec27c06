"""Makes a program smaller while it shows the same: delta debugging over its data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.attack import rules
from tests.attack.program import Data, Order, Program


def shrunk(program: Program, shows: Callable[[Program], bool], most: int = 120, until: float = math.inf) -> Program:
    """The smallest program found that shows the same.

    Args:
        program: What to begin with.
        shows: Whether a program shows the fault.
        most: How many programs to try.
        until: When to stop trying, by time.monotonic().
    """
    tried = {program}
    again = True
    while again:
        again = False
        for smaller in candidates(program):
            if len(tried) > most or time.monotonic() > until:
                return program
            if smaller in tried or rules.why_not(smaller):
                continue
            tried.add(smaller)
            if shows(smaller):
                program, again = smaller, True
                break
    return program


def candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, those with the most taken away first."""
    actions = program.actions
    size = len(actions) // 2
    while size:
        for start in range(0, len(actions) - size + 1, size):
            yield replace(program, actions=actions[:start] + actions[start + size :])
        size //= 2
    data, order = program.data, program.order
    yield replace(program, keep=0)
    yield replace(program, shm="")
    yield replace(program, loader="")
    yield replace(program, collate="")
    yield replace(program, data=replace(data, noise=""))
    yield replace(program, data=replace(data, habit=""))
    yield replace(program, data=replace(data, form="number"))
    yield replace(program, data=replace(data, form="number"), collate="")
    yield replace(program, order=Order())
    if order.kind not in ("in order", "shuffle"):
        yield replace(program, order=Order("shuffle"))
    yield replace(program, data=Data(kind="rows", length=data.length))
    for name, _ in program.options:
        if name not in ("num_workers",):
            yield program.with_options(**{name: None})
    yield program.with_options(prefetch_epochs=None, persistent_workers=None)
    yield from _smaller_numbers(program)


def _smaller_numbers(program: Program) -> Iterator[Program]:
    data, order = program.data, program.order
    if program.workers:
        yield program.with_options(num_workers=program.workers - 1 or None)
    for name in ("prefetch_factor", "chunk_size"):
        if (program.get(name) or 1) > 1:
            yield program.with_options(**{name: program.get(name) - 1})
    if program.batch_size is None or program.batch_size > 1:
        yield replace(program, batch_size=(program.batch_size or 2) - 1)
    for length in (data.length // 2, data.length - 1):
        if 0 <= length < data.length:
            yield replace(program, data=replace(data, length=length, at=min(data.at, max(length - 1, 0))))
    if data.habit and data.at:
        yield replace(program, data=replace(data, at=data.at - 1))
    if order.kind in ("raising", "odd batches") and order.at:
        yield replace(program, order=replace(order, at=order.at - 1))
    for k, do in enumerate(program.actions):
        if do.count > 1:
            actions = (*program.actions[:k], replace(do, count=do.count - 1), *program.actions[k + 1 :])
            yield replace(program, actions=actions)
        if do.verb == "resume" and do.what:
            actions = (*program.actions[:k], replace(do, count=0, what=""), *program.actions[k + 1 :])
            yield replace(program, actions=actions)
    if program.seed:
        yield replace(program, seed=0)
