"""The frames on the wire to a far worker, the plans that both ends keep, and a connection's two ends."""

from __future__ import annotations

import os
import pickle
import random
import select
import socket
import threading
from typing import Any

import pytest
import torch

from shmloader.core.batch_tree import Kept
from shmloader.far.frames import (
    ANSWER,
    BEAT,
    MOST_KEPT,
    Answer,
    Garbage,
    beat,
    check,
)
from shmloader.far.link import Link
from shmloader.far.stand_in import _StandIn
from shmloader.ray.workers import differences, facts


def test_a_beat_is_a_head_alone() -> None:
    assert Answer(*ANSWER.unpack(beat(0))).kind == BEAT
    with pytest.raises(Garbage):
        check(Answer(*ANSWER.unpack(beat(0))), 0, 1 << 20)


def a_stand_in() -> Any:
    """What a stand-in has for plans, and no more."""
    made = _StandIn.__new__(_StandIn)
    made._plans = Kept(MOST_KEPT)
    return made


def test_both_ends_keep_the_same_plans() -> None:
    """Also where they drop all that they keep, and where a plan is too large to be kept."""
    draws = random.Random(3)
    sizes = [draws.randrange(60_000) for _ in range(80)] + [1 << 20]
    pickled = [pickle.dumps(((dict, ("long " * (size // 5),)), torch.float32)) for size in sizes]
    near, sent = a_stand_in(), Kept(MOST_KEPT)  # as a Maker has it
    were_sent = were_not = 0
    for _ in range(1500):
        number = draws.randrange(len(sizes)) if draws.random() < 0.5 else draws.randrange(5)
        plan = b"" if sent.get(number) else pickled[number]
        if plan:
            sent.keep(number, True, len(plan))
        assert near._plan(number, plan) == pickled[number]
        were_sent, were_not = were_sent + bool(plan), were_not + (not plan)
    assert were_sent > 200 and were_not > 200


def test_a_plan_that_was_not_sent_is_not_known() -> None:
    near = a_stand_in()
    with pytest.raises(Garbage, match="plan 7, which it has not sent"):
        near._plan(7, b"")


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
        link._sock, link.patience, link._leave = near, 60.0, -1
        link._polls = {wanted: link._poll_for(wanted) for wanted in (select.POLLIN, select.POLLOUT)}
        link.send(data[:5], b"", memoryview(data)[5:])
        thread.join()
    assert got == data


def test_differences_are_named() -> None:
    assert differences(facts(), facts()) == ""
    assert differences({"a": "1"}, {"a": "2", "b": "3"}) == "a 1 here and 2 there, b unknown here and 3 there"
