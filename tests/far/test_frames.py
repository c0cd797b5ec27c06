"""The frames on the wire to a far worker, the checks of a layout, and a connection's two ends."""

from __future__ import annotations

import pickle
import random
import struct
from typing import Any

import numpy
import pytest
import torch
from pretended import PLAN, words

from shmloader.core.batch_tree import Account, Kept
from shmloader.far.facts import differences, facts
from shmloader.far.frames import (
    MOST_KEPT,
    Garbage,
    pack_task,
    unpack_task,
)
from shmloader.far.layout import Layouts


@pytest.mark.parametrize(
    "task", [5, -1, [], [3, 1, 2], pickle.dumps("a key"), numpy.int64(-5), list(numpy.array([3, -(1 << 63)]))], ids=repr
)
def test_tasks_arrive_as_they_were(task: Any) -> None:
    got = unpack_task(*pack_task(task))
    assert got == task and type(got) is type(task)
    if isinstance(task, list):
        assert list(map(type, got)) == list(map(type, task))


@pytest.mark.parametrize(
    ("kind", "data"), [(1, b""), (1, b"x" * 16), (2, b"x" * 7), (9, b""), (4, b"x" * 16), (4, b""), (5, b"x" * 9)]
)
def test_a_task_that_nobody_packed_is_garbage(kind: int, data: bytes) -> None:
    with pytest.raises(Garbage):
        unpack_task(kind, data)


def test_a_plan_that_is_kept_is_checked_again() -> None:
    layouts, meta = Layouts(), words(7, 0, 1, 4)
    numbers = struct.unpack("4q", meta)
    for plan in (PLAN, PLAN, b"", b""):  # it is kept the second time
        assert layouts.check(meta, numbers, plan, 4) == PLAN
    for plan, size in ((b"", 3), (pickle.dumps((torch.float64,)), 4)):
        with pytest.raises(Garbage):
            layouts.check(meta, numbers, plan, size)


def test_both_ends_keep_the_same_plans() -> None:
    """Also where they drop all that they keep, and where a plan is too large to be kept."""
    draws = random.Random(3)
    sizes = [draws.randrange(60_000) for _ in range(80)] + [1 << 20]
    pickled = [pickle.dumps(((dict, ("long " * (size // 5),)), torch.float32)) for size in sizes]
    layouts, sent = Layouts(), Kept(Account(MOST_KEPT))  # as a Maker has it
    were_sent = were_not = 0
    for _ in range(1500):
        number = draws.randrange(len(sizes)) if draws.random() < 0.5 else draws.randrange(5)
        meta = words(number, 0, 1, 4)
        plan = b"" if sent.get(number) else pickled[number]
        if plan and sent.meets(number):
            sent.keep(number, True, len(plan))
        assert layouts.check(meta, struct.unpack("4q", meta), plan, 16) == pickled[number]
        were_sent, were_not = were_sent + bool(plan), were_not + (not plan)
    assert were_sent > 200 and were_not > 200


def test_differences_are_named() -> None:
    assert differences(facts(), facts()) == ""
    assert differences({"a": "1"}, {"a": "2", "b": "3"}) == "a 1 here and 2 there, b unknown here and 3 there"
