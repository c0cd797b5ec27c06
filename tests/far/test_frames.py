"""The frames on the wire to a far worker, the checks of a layout, and a connection's two ends."""

from __future__ import annotations

import os
import pickle
import random
import select
import socket
import struct
import threading
from typing import Any

import numpy
import pytest
import torch
from pretended import PLAN, words

from shmloader.core.batch_tree import Kept
from shmloader.far.facts import differences, facts
from shmloader.far.frames import (
    ANSWER,
    BEAT,
    MOST_KEPT,
    Answer,
    Garbage,
    beat,
    check,
    pack_task,
    unpack_task,
)
from shmloader.far.layout import Layouts
from shmloader.far.link import Link


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


def test_a_beat_is_a_head_alone() -> None:
    assert Answer(*ANSWER.unpack(beat(0))).kind == BEAT
    with pytest.raises(Garbage):
        check(Answer(*ANSWER.unpack(beat(0))), 0, 1 << 20)


def test_a_layout_is_checked_again_with_fewer_bytes() -> None:
    layouts, meta = Layouts(), words(7, 0, 1, 4)
    numbers = struct.unpack("4q", meta)
    for plan in (PLAN, b"", b""):
        assert layouts.check(meta, numbers, plan, 4) == PLAN
    with pytest.raises(Garbage):
        layouts.check(meta, numbers, b"", 3)


def test_both_ends_keep_the_same_plans() -> None:
    """Also where they drop all that they keep, and where a plan is too large to be kept."""
    draws = random.Random(3)
    sizes = [draws.randrange(60_000) for _ in range(80)] + [1 << 20]
    pickled = [pickle.dumps(((dict, ("long " * (size // 5),)), torch.float32)) for size in sizes]
    layouts, sent = Layouts(), Kept(MOST_KEPT)  # as a Maker has it
    were_sent = were_not = 0
    for _ in range(1500):
        number = draws.randrange(len(sizes)) if draws.random() < 0.5 else draws.randrange(5)
        meta = words(number, 0, 1, 4)
        plan = b"" if sent.get(number) else pickled[number]
        if plan:
            sent.keep(number, True, len(plan))
        assert layouts.check(meta, struct.unpack("4q", meta), plan, 16) == pickled[number]
        were_sent, were_not = were_sent + bool(plan), were_not + (not plan)
    assert were_sent > 200 and were_not > 200


def test_a_plan_that_was_not_sent_is_not_known() -> None:
    layouts, meta = Layouts(), words(7, 0, 1, 4)
    with pytest.raises(Garbage, match="plan 7, which it has not sent"):
        layouts.check(meta, struct.unpack("4q", meta), b"", 4)


def test_a_plan_with_the_number_of_another_one_is_checked_anew() -> None:
    layouts, meta = Layouts(), words(7, 0, 1, 4)
    numbers = struct.unpack("4q", meta)
    layouts.check(meta, numbers, PLAN, 4)
    with pytest.raises(Garbage):
        layouts.check(meta, numbers, pickle.dumps((torch.float64,)), 4)


def test_a_link_sends_more_than_the_kernel_holds() -> None:
    near, far = socket.socketpair()
    data = os.urandom(20 << 20)
    with near, far:
        got = bytearray(len(data))

        def drain() -> None:
            poll = select.poll()
            poll.register(far, select.POLLIN)
            at = 0
            while at < len(data):
                poll.poll()
                at += far.recv_into(memoryview(got)[at:])

        thread = threading.Thread(target=drain)
        thread.start()
        link = Link.__new__(Link)
        near.setblocking(False)
        link._sock, link._patience, link._leave = near, 60.0, -1
        link._polls = {wanted: link._poll_for(wanted) for wanted in (select.POLLIN, select.POLLOUT)}
        link.send(data[:5], b"", memoryview(data)[5:])
        thread.join()
    assert got == data


def test_differences_are_named() -> None:
    assert differences(facts(), facts()) == ""
    assert differences({"a": "1"}, {"a": "2", "b": "3"}) == "a 1 here and 2 there, b unknown here and 3 there"
