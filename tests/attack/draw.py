"""Draws programs from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.attack import rules
from tests.attack.datasets import COLLATE, FORMS, HABITS, KINDS, NEED_COLLATE, NOISE
from tests.attack.loaders import LOADERS
from tests.attack.program import Data, Do, Order, Program
from tests.attack.samplers import ORDERS


def draw(seed: str) -> Program:
    """The program of this seed."""
    drawn = random.Random(seed)
    while True:
        program = _program(drawn)
        if rules.why_not(program) is None:
            return program


def _some(drawn: random.Random, share: float, values: Sequence[Any], unless: Any) -> Any:
    return drawn.choice(values) if drawn.random() < share else unless


def _program(drawn: random.Random) -> Program:
    kind = drawn.choice([*KINDS, "rows", "rows", "stream with state"])
    stream = kind.startswith("stream")
    length = drawn.choice([0, 1, 5, 6, 7, 8, 9, 12, 13, 24])
    data = Data(
        kind,
        length,
        _some(drawn, 0.4, [*FORMS], "number"),
        _some(drawn, 0.2, [*NOISE], ""),
        _some(drawn, 0.3, [*HABITS], ""),
        drawn.randrange(max(length, 1)),
    )
    order = Order("in order" if stream else _some(drawn, 0.8, [*ORDERS], "in order"), drawn.randrange(max(length, 1)))
    collate = _some(drawn, 0.15, [*COLLATE], "")
    collate = "as_list" if data.form in NEED_COLLATE else collate
    batch_size = _some(drawn, 0.1, [None], drawn.choice([1, 2, 2, 3, 4]))
    program = Program(drawn.randrange(1000), data, order, batch_size, collate, keep=_some(drawn, 0.3, [1, 3, 99], 0))
    program = replace(program, loader=_some(drawn, 0.1, [*LOADERS], ""))
    program = program.with_options(**_options(drawn, stream, data))
    program = _some(drawn, 0.2, [_prefetched, _forking], _as_it_is)(drawn, program)
    actions: list[Do] = []
    changes = bool(program.get("prefetch_epochs"))
    for number in range(drawn.randint(1 + changes, 3)):
        actions += _epoch(drawn, program, number, 0.6 if changes and number else 0.2)
    return Program(**{**vars(program), "actions": tuple(actions)})


def _options(drawn: random.Random, stream: bool, data: Data) -> dict[str, Any]:
    def often(share: float, *values: Any) -> Any:
        return _some(drawn, share, values, None)

    options: dict[str, Any] = {
        "num_workers": drawn.choice([0, 1, 1, 2, 2, 2, 3]) or None,
        "drop_last": often(0.1, True),
        "device": often(0.08, "cpu"),
    }
    if not options["num_workers"]:
        return options
    options |= {
        "prefetch_factor": often(0.4, 1, 2, 3, 4),
        "persistent_workers": often(0.4, True),
        "timeout": often(0.1, 120),
        "pin_memory": often(0.05, True),
        "in_order": often(0.08, False),
        "spare_slots": often(0.2, 0, 1, 4),
        "ring_memory": often(0.05, "memfd"),
        "max_ring_bytes": often(0.1, 200_000, 2_000_000),
    }
    if not stream:
        options |= {
            "schedule": often(0.2, "steal"),
            "chunk_size": often(0.2, 1, 2, 3),
            "sample_seeds": often(0.2, True),
            "prefetch_epochs": often(0.5, True) if options["persistent_workers"] else None,
            "on_worker_death": "respawn" if data.habit == "exits once" else often(0.1, "respawn"),
        }
        if data.habit in ("raises", "raises odd") and drawn.random() < 0.3:
            options |= {"on_bad_sample": "skip", "max_bad_samples": 100}
    return options


def _as_it_is(drawn: random.Random, program: Program) -> Program:
    return program


def _prefetched(drawn: random.Random, program: Program) -> Program:
    """The same with epochs that are prefetched, and a sampler that can be changed between them."""
    order = drawn.choice(sorted({kind for kinds in rules.CHANGES_OF.values() for kind in kinds}))
    program = replace(program, data=replace(program.data, kind="rows"), order=Order(order))
    return program.with_options(
        num_workers=program.workers or 1, persistent_workers=True, prefetch_epochs=True, in_order=None
    )


def _forking(drawn: random.Random, program: Program) -> Program:
    """The same with a dataset that forks a process, which collates tensors while batches are collated here."""
    data = replace(program.data, kind="rows", form="tensor", habit="forks")
    program = replace(program, data=data, order=Order(), keep=9, collate="")
    return program.with_options(
        num_workers=program.workers or 1, on_bad_sample=None, max_bad_samples=None, on_worker_death=None
    )


def _epoch(drawn: random.Random, program: Program, number: int, changing: float = 0.2) -> list[Do]:
    """What a user does in an epoch, and before it."""
    actions: list[Do] = []
    if drawn.random() < changing:
        changes = [what for what, kinds in rules.CHANGES_OF.items() if program.order.kind in kinds]
        actions += [Do("change", what=drawn.choice(changes))] if changes else []
    if program.workers and drawn.random() < 0.15:
        actions.append(Do("start"))
    if drawn.random() < 0.6 and (program.order.kind == "distributed" or program.data.kind == "rows of epoch"):
        actions.append(Do("set epoch", _some(drawn, 0.2, range(4), number)))
    actions.append(Do("begin"))
    for _ in range(drawn.choice([0, 0, 1, 1, 2])):
        actions += _within(drawn, program)
    if drawn.random() < 0.85:
        actions.append(Do("rest"))
    if drawn.random() < 0.25:
        actions += [Do("save"), _resume(drawn, program)] if drawn.random() < 0.7 else [Do("drop")]
    if drawn.random() < 0.15:
        actions.append(Do(drawn.choice(["close", "drop", "fork"])))
    if drawn.random() < 0.1:
        actions += [Do("drop"), Do(drawn.choice(["copy", "pickle"]))]
    return actions


def _within(drawn: random.Random, program: Program) -> list[Do]:
    count = drawn.randint(1, 5)
    chosen = drawn.random()
    if chosen < 0.15:
        return [Do("take in thread", count)]
    if chosen < 0.3:
        return [Do("take", count), Do(drawn.choice(["nest", "fork"]))]
    actions = [Do("take", count)]
    if chosen < 0.4:
        actions.append(Do("close iterator"))
    actions.append(Do("save"))
    if drawn.random() < 0.4 and actions[-2].verb != "close iterator":
        actions.append(Do("take", drawn.randint(1, 3)))
    return [*actions, _resume(drawn, program), Do("begin")]


def _resume(drawn: random.Random, program: Program) -> Do:
    if program.order.kind in ("shuffle", "generator") and drawn.random() < 0.3:
        return Do("resume", what="generator")
    if drawn.random() < 0.4 and not program.is_stream:
        return Do("resume", drawn.randint(0, 3), "workers")
    return Do("resume")
